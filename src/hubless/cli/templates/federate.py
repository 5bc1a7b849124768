"""One site of a federation: it trains on its own data and meets the others in a folder.

Start it once for every site, in terminals of their own or on machines that share the folder:

    python federate.py site-a
    python federate.py site-b

A bucket does as well (s3://bucket/run). Who is there: `hubless ls federation`.
"""

from __future__ import annotations

import argparse
import zlib

import torch
from torch.nn.functional import cross_entropy

import hubless

FEATURES = 20
EPOCHS = 20


def examples(site: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Your data goes here; it never leaves this process."""
    drawn = torch.Generator().manual_seed(zlib.crc32(site.encode()))
    x = torch.randn(600, FEATURES, generator=drawn)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def accuracy(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """The share of examples that the model gets right."""
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def main() -> None:
    """Train, and share what was learnt after every epoch."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("client", nargs="?", default="site-a", help="this site's name")
    parser.add_argument("url", nargs="?", default="federation", help="where all sites meet")
    asked = parser.parse_args()

    x, y = examples(asked.client)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # from here on all sites start alike; after a crash, this one goes on where the others are
    with hubless.join(asked.url, asked.client, model=model) as federation:
        for epoch in range(1, EPOCHS + 1):
            for batch in torch.randperm(len(y)).split(20):
                loss = cross_entropy(model(x[batch]), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            federation.step(model, examples=len(y), metrics={"loss": loss.item()})
            if epoch % 5 == 0:
                print(f"{asked.client}: epoch {epoch}, accuracy {accuracy(model, x, y):.1%}")
    # the end of the block has loaded what all have arrived at
    print(f"{asked.client}: the federation's model, accuracy {accuracy(model, x, y):.1%}")
    torch.save(model.state_dict(), f"{asked.client}.pt")


if __name__ == "__main__":
    main()

"""scikit-learn in a federation: any framework takes part whose params are arrays with names.

Five sites hold two digits each and know nothing of the others. Ten lines are the bridge: what a
model knows as a dict of arrays, and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

import hubless

SITES, EPOCHS = 5, 15
IMAGES, LABELS = load_digits(return_X_y=True)
TRAIN, TEST, TRAIN_LABELS, TEST_LABELS = train_test_split(
    IMAGES / 16.0, LABELS, test_size=0.25, random_state=0
)


def params_of(model: SGDClassifier) -> dict[str, np.ndarray]:
    """What the model has learned, by name."""
    return {"coef": model.coef_, "intercept": model.intercept_}


def load(model: SGDClassifier, params: Mapping[str, np.ndarray]) -> None:
    """The other way round."""
    model.coef_, model.intercept_ = params["coef"].copy(), params["intercept"].copy()


def fitted(mine: np.ndarray, model: SGDClassifier | None = None) -> SGDClassifier:
    """One more pass over one's own digits."""
    model = model or SGDClassifier(
        loss="log_loss", learning_rate="constant", eta0=0.05, random_state=0
    )
    return model.partial_fit(TRAIN[mine], TRAIN_LABELS[mine], classes=np.arange(10))


def site(number: int) -> tuple[float, float]:
    """The accuracy over all ten digits, alone and as a member."""
    mine = np.isin(TRAIN_LABELS, [2 * number, 2 * number + 1])
    alone = fitted(mine)
    together = fitted(mine)
    names = [f"site-{i}" for i in range(SITES)]
    with hubless.join(
        "memory://sklearn", names[number], pace=hubless.Rounds(members=names, deadline=60)
    ) as federation:
        for _ in range(EPOCHS):
            fitted(mine, alone)
            fitted(mine, together)
            load(together, federation.step(params_of(together), examples=int(mine.sum())))
    return alone.score(TEST, TEST_LABELS), together.score(TEST, TEST_LABELS)


if __name__ == "__main__":
    with ThreadPoolExecutor(SITES) as pool:
        scores = np.array(list(pool.map(site, range(SITES))))
    print(f"alone {scores[:, 0].mean():.1%} of ten digits, together {scores[:, 1].mean():.1%}")

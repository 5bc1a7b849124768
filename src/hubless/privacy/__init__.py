"""Privacy: what clients may say about their data, and what saying it costs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.privacy.accounting import Cost as Cost
    from hubless.privacy.accounting import composed as composed
    from hubless.privacy.accounting import sigma_for as sigma_for
    from hubless.privacy.ledger import Ledger as Ledger
    from hubless.privacy.mechanisms import Additive as Additive
    from hubless.privacy.mechanisms import Count as Count
    from hubless.privacy.mechanisms import Gaussian as Gaussian
    from hubless.privacy.mechanisms import Laplace as Laplace
    from hubless.privacy.mechanisms import Mechanism as Mechanism
    from hubless.privacy.mechanisms import SparseVector as SparseVector

__getattr__, __dir__ = exported(__name__)

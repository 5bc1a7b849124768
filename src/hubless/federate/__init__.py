"""Federating for real: members that meet in nothing but a folder or bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.federate.agreement import Agreement as Agreement
    from hubless.federate.federation import Federation as Federation
    from hubless.federate.joining import join as join
    from hubless.federate.outside.probe import Findings as Findings
    from hubless.federate.outside.probe import examine as examine
    from hubless.federate.outside.probe import honours_create as honours_create
    from hubless.federate.outside.probe import race as race
    from hubless.federate.outside.rights import policy as policy
    from hubless.federate.outside.survey import Collective as Collective
    from hubless.federate.outside.survey import Present as Present
    from hubless.federate.outside.survey import agreed as agreed
    from hubless.federate.outside.survey import arrived_at as arrived_at
    from hubless.federate.outside.survey import survey as survey
    from hubless.federate.pace import Anytime as Anytime
    from hubless.federate.pace import Rounds as Rounds
    from hubless.federate.picking.draw import Selection as Selection
    from hubless.federate.picking.participation import Participation as Participation
    from hubless.federate.rounds.deadline import Adaptive as Adaptive

__getattr__, __dir__ = exported(__name__)

"""How xdist spreads the suite: all cases of one engine configuration go to one worker, one after another."""

from xdist.scheduler import LoadScopeScheduling


class ByEngine(LoadScopeScheduling):  # type: ignore[misc]
    """LoadScope keyed by what an engine is opened with, read from the case id at the end of a test's node id."""

    def _split_scope(self, nodeid: str) -> str:
        _, bracket, case = nodeid.partition("[")
        if not bracket:
            return str(super()._split_scope(nodeid))
        sharing = case.startswith("shared-")
        return f"{case.rstrip(']').rpartition('-')[2]} {sharing}"

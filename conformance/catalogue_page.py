"""docs/requirements.md, made from the catalogue: `python -m kvfence.conformance.catalogue_page`."""

from collections import defaultdict

from kvfence.conformance.catalogue import Requirement, requirements, untestable
from kvfence.conformance.scenarios import REPERTOIRE

HEAD = """# Requirements

Made from [catalogue.toml](../conformance/catalogue.toml) by `make requirements`. An id is permanent: it is never
renamed and never reused. The level is what an engine must let be observed for its answers to be held against the
requirement; what else it shows is looked at too. Without the capabilities named a requirement is NOT-APPLICABLE, and
where its control did not happen it is INCONCLUSIVE, never a pass.
"""


def page() -> str:
    """Every requirement with its tests, and what cannot be tested."""
    parts, tests = [HEAD], tested_by()
    for family, members in _families().items():
        parts.append(f"## {family}\n")
        parts += [_section(requirement, tests.get(requirement.id, [])) for requirement in members]
    parts.append("## Not tested, and why\n")
    parts.append("\n".join(f"- *{one.must}* {one.reason}" for one in untestable()) + "\n")
    return "\n".join(parts)


def _families() -> dict[str, list[Requirement]]:
    families: dict[str, list[Requirement]] = {}
    for requirement in requirements().values():
        families.setdefault(requirement.id.partition(".")[0], []).append(requirement)
    return families


def _section(requirement: Requirement, tests: list[str]) -> str:
    lines = [
        f"### {requirement.id}\n",
        f"{requirement.must} {requirement.why}\n",
        f"- level: {requirement.level}; modes: {', '.join(requirement.modes)}; since {requirement.since}",
        f"- capabilities: {', '.join(requirement.capabilities) or 'none'}",
        f"- control: {requirement.control}",
        f"- trips over the planted fault `{requirement.tripped_by}`",
    ]
    if tests:
        lines.append(f"- tested by: {', '.join(f'`{test}`' for test in tests)}")
    return "\n".join(lines) + "\n"


def tested_by() -> dict[str, list[str]]:
    """Names of the scenarios of each requirement. Those of the modes have none: every profile's cases test them."""
    found = defaultdict(list)
    for name in sorted(REPERTOIRE.names()):
        found[REPERTOIRE.requirement(name)].append(name)
    return found


if __name__ == "__main__":
    print(page(), end="")

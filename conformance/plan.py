"""The plan of a run: its cases and, drawn once and in their order, the prompts of each.

Every case of the profile is drawn, also those not asked for, so that a case has the same prompts however few are run.
"""

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from weakref import finalize

from kvfence.conformance import case as grid
from kvfence.conformance.case import Case, layouts
from kvfence.conformance.scenarios import REPERTOIRE, cells, factors
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.settings import Settings, UsageError
from kvfence.conformance.subject import Subject
from kvfence.prompts import alphabet, models
from kvfence.prompts.folder import FolderTokenizer, ModelError
from kvfence.prompts.groups import Layout
from kvfence.prompts.mirror import MirrorError, Part, write_adapter, write_weights
from kvfence.prompts.prompt import Prompt
from kvfence.prompts.text_layout import TextLayout
from kvfence.prompts.word_layout import WordLayout

# Prompts that measure noise are drawn with other seeds than those that are judged.
NOISE_SEED = 1_000_003
MIN_POOL = 16_384  # tokens of KV


class Plan:
    """Cases and prompts of one run on one model. Raises UsageError for a model that cannot be used."""

    def __init__(self, settings: Settings, scenarios: "Callable[[Plan], Iterable[Scenario]] | None" = None) -> None:
        """With `scenarios` the cases are those that it writes, and none of the profile's."""
        self._settings = settings
        self.longest = 0
        self.left_out: dict[str, int] = {}  # scenarios that cannot be written for the model, by the reason
        try:
            self.model = model = models.resolve(settings.model)
        except ModelError as error:
            raise UsageError(str(error)) from error
        if not model.has_text and model.vocabulary < alphabet.VOCAB_SIZE:
            raise UsageError(
                f"{model.path} has no tokenizer.json and only {model.vocabulary} token ids; "
                f"without text, prompts need {alphabet.VOCAB_SIZE}"
            )
        written = self.write_layouts(settings.seed)
        self._layouts = written
        overheads = {name: layout.overhead for name, layout in written.items()}
        if scenarios is not None:
            self._prompts: dict[Case, list[Prompt]] = {}
            self.scenarios: list[Scenario] = list(scenarios(self))
            self.cases: list[Subject] = list(self.scenarios)
            return
        profile = settings.plan
        dtypes = (*profile.dtypes, *(d for d in settings.dtypes if d not in profile.dtypes))
        self._prompts = {
            case: written[case.layout].compose(case.edge, case.company, case.requests)
            for case in grid.cases(profile, model, overheads, dtypes)
        }
        self.scenarios = list(self._write_scenarios(dtypes))
        # In running order: scenarios see more a second than modes do, and each dtype takes a golden of its own.
        every: list[Subject] = sorted([*self.scenarios, *self._prompts], key=lambda case: dtypes.index(case.dtype))
        # The cases asked for.
        self.cases = [case for case in every if case.dtype in self.dtypes and settings.selects(case)]
        if not self.cases:
            raise UsageError(f"no case of profile {settings.profile} matches; `kvfence list --cases` shows them")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of its cases."""
        return self._settings.dtypes or self._settings.plan.dtypes

    @property
    def layouts(self) -> Collection[str]:
        """Names of the layouts that prompts for the model can be written in."""
        return self._layouts

    def layout(self, case: Subject) -> Layout:
        """The layout a case's prompts are written in."""
        return self._layouts[case.layout]

    def prompts(self, case: Case) -> list[Prompt]:
        """The prompts of a case."""
        return self._prompts[case]

    def length(self, case: Subject) -> int:
        """Tokens of the longest sequence of a case, prompt and output; of a scenario, of all scenarios.

        Of schedules that are made while a run goes on `longest` is.
        """
        if isinstance(case, Scenario):
            return max([self.longest, case.length, *(scenario.length for scenario in self.scenarios)])
        return max(len(prompt.tokens) for prompt in self.prompts(case)) + self._settings.plan.max_tokens

    @property
    def strength(self) -> int:
        """How many factor values come together in its cells; 0 if it has none."""
        celled = any(isinstance(case, Scenario) and case.cell for case in self.cases)
        return self._settings.plan.strength if celled else 0

    @cached_property
    def pool_size(self) -> int:
        """Tokens of KV that the largest case of the profile needs, if nothing is shared and a quarter is cached."""
        n = self._settings.plan.max_tokens
        largest = max((sum(len(p.tokens) + n for p in prompts) for prompts in self._prompts.values()), default=0)
        return max(MIN_POOL, largest + largest // 4)

    @cached_property
    def _mirrors(self) -> Path:
        folder = Path(mkdtemp(prefix="kvfence-"))
        finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def mirror(self, part: Part, kind: str) -> Path:
        """The folder of a mirror of the run's model, as an "adapter" or as a "model"; written when first asked for."""
        folder = self._mirrors / f"{part}-{kind}"
        if not folder.exists():
            write = write_adapter if kind == "adapter" else write_weights
            try:
                write(self.model.path.resolve(), part, folder)
            except MirrorError as error:
                raise UsageError(f"no scenario of adapters or weights can be written: {error}") from error
        return folder

    def write_scenario(self, name: str, dtype: str) -> Scenario:
        """A scenario for the run's model. Raises UsageError for a model of other words than the canary's."""
        return REPERTOIRE.make(name, dtype, self._words, self.model.path.resolve(), self.mirror)

    @property
    def _words(self) -> Layout:
        layout = self._layouts.get("canary")
        if layout is None:
            raise UsageError(f"scenarios are written in the canary's words, and {self.model.path} has others")
        return layout

    def _write_scenarios(self, dtypes: tuple[str, ...]) -> Iterator[Scenario]:
        profile = self._settings.plan
        if self.model.has_text and profile.edges:
            # What there is for such a model are the modes.
            left = len(REPERTOIRE.matching(profile.scenarios)) + sum(1 for _ in self._cells())
            self.left_out |= {"they are in the canary's words, and this model has others": left} if left else {}
            return
        for dtype in ("float32",) if profile.edges else dtypes:
            for name in REPERTOIRE.matching(profile.scenarios):
                try:
                    yield self.write_scenario(name, dtype)
                except UsageError as error:
                    if not profile.edges:
                        raise
                    # There is enough else to run on a model that has no mirrors.
                    self.left_out[str(error)] = self.left_out.get(str(error), 0) + 1
        for cell in self._cells():
            yield cells.write(cell, self._words, self.model.path.resolve(), self.mirror)

    def _cells(self) -> tuple[factors.Cell, ...]:
        strength = self._settings.plan.strength
        return factors.cells(strength) if strength else ()

    def write_layouts(self, seed: int) -> dict[str, Layout]:
        """Fresh layouts, by name, that draw from `seed`."""
        names = layouts(self.model, self._settings.plan)
        if not self.model.has_text:
            return {"canary": WordLayout(seed, reach=self._settings.plan.max_tokens)}
        tokenizer = FolderTokenizer(self.model)
        return {name: TextLayout(name, tokenizer, self.model.bos, seed) for name in names}

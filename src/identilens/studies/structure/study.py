"""What the attention of a corpus has in common, head by head (structure2025)."""

from collections.abc import Sequence
from typing import Any

from identilens.errors import SettingError
from identilens.linalg import FLOAT32_EPS
from identilens.models.lens import Lens
from identilens.runs.folder import RunFolder
from identilens.runs.provenance import Identity
from identilens.runs.study import Output, Study, Tables, study_function
from identilens.studies.items import identities
from identilens.studies.structure.lengths import texts_of_length
from identilens.studies.structure.result import Structure
from identilens.studies.structure.runner import Runner
from identilens.studies.structure.settings import StructureSettings


class StructureStudy(Study[StructureSettings, Structure]):
    """Compute for every head what the attention of texts of one length shares: W, the subspace R, patterns, norms.

    Two passes over the texts; only sums are stored (structure2025, II.B and III). The first pass sums the Gram matrix
    of R (Eq. 6) and the raw and effective weights, and collects the embeddings from which representatives are chosen
    (III.B.1). The second pass compares each text with R, and sums the representatives' weights to W (Eq. 7, 8). With
    more texts, memory grows by the embeddings of at most ``pool`` of them. More than 10,000 texts are tokenised one by
    one, in each pass.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts that are too short or too few, or options outside their range.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If weights or values are NaN or infinite, naming where.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> structure = idl.structure(lens, idl.examples(), length=36, clusters=2, perturbed=0)
        >>> structure
        Structure: 6 texts of 36 tokens: R is ...
    """

    name = "structure"
    unit = "steps"
    alone = "each part adds to the sums of the previous part"
    settings_type = StructureSettings
    result_type = Structure

    def __init__(self, lens: Lens, texts: Any, settings: StructureSettings) -> None:
        self.lens, self.settings = lens, settings
        self.items = texts_of_length(
            lens, texts, settings.length, cut=settings.cut, shorter=settings.shorter
        )
        most = min(len(self.items), settings.pool)
        if settings.clusters is not None and settings.clusters > most:
            raise SettingError("clusters", f"of at most {most}, one per text", settings.clusters)
        self.runner = Runner(lens, self.items, settings)

    def identity(self) -> Identity:
        """Return the model and the texts, with the threshold that is used."""
        tolerance = f"max(n, d_model) * {FLOAT32_EPS} * largest singular value"
        facts: dict[str, Any] = {
            "special_positions": self.runner.special,
            "rank_tolerance": tolerance,
        }
        # The reported l refers to the mean, also where it was given for the sum.
        if self.settings.threshold is None:
            facts |= {"threshold": 2 / self.settings.length, "scale": "mean"}
        return Identity(self.lens.facts, identities(self.items), facts)

    def sizes(self) -> Sequence[int]:
        """Return the steps of each part: two for each text, one for each text that is perturbed."""
        return [size for size, *_ in self.runner.parts]

    def begin(self, folder: RunFolder | None) -> None:
        """Read the sums that an interrupted run has saved."""
        self.runner.begin(folder)

    def run(self, part: int) -> Output:
        """Return the tables of one part."""
        self.tell(self.runner.parts[part][1])
        return Output(self.runner.run(part))

    def finish(self, tables: Tables) -> Output:
        """Return all tables, with the means over representatives and over all texts."""
        return Output(tables, self.runner.closing.matrices())


structure = study_function(StructureStudy, "structure")

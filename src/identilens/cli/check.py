"""``identilens check``: do certificates hold, by their own numbers."""

from identilens.errors import CheckFailedError
from identilens.runs.terminal import say
from identilens.studies.certify.certificates import CertificateFile


def check(file: str, /, *files: str) -> None:
    """Compute the ends in certificates again, from their numbers alone, and say whether they hold.

    The exit code is 1 if one does not. What a file says of itself, its model and its row, is printed and not checked.

    Args:
        file: A certificate, from the folder certificates of a run with --claim "A > B" --certificates.
        files: Further certificates.
    """
    read = {one: CertificateFile.read(one) for one in (file, *files)}
    for name, one in read.items():
        say(f"{name}: {one.sentences()}")
    failed = [
        one for one in read.values() if not one.certificate.holds or one.certificate.met is None
    ]
    if failed:
        raise CheckFailedError(
            f"{len(failed)} of {len(read)} certificates do not hold: their numbers do not prove the stated ends, or "
            "the rows that should reach them are no alternatives. Do not trust them; run the command that wrote them "
            "again."
        )
    say(f"{len(read)} of {len(read)} certificates hold.")

"""Tables, provenance, saving and resuming; knows no model."""

from identilens.results.audit import Audit as Audit
from identilens.results.audit import Finding as Finding
from identilens.results.provenance import provenance as provenance
from identilens.results.run_folder import RunFolder as RunFolder

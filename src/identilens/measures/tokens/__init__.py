"""Token identifiability: can the input token be recovered from its hidden state (Brunner et al. 2020, 4)."""

from identilens.measures.tokens.closed_form import RidgeFit as RidgeFit
from identilens.measures.tokens.closed_form import fit_ridge as fit_ridge
from identilens.measures.tokens.fitting import FittedProbe as FittedProbe
from identilens.measures.tokens.fitting import fit_probes as fit_probes
from identilens.measures.tokens.lookup import LookUp as LookUp
from identilens.measures.tokens.lookup import look_up as look_up
from identilens.measures.tokens.probes import LinearProbe as LinearProbe
from identilens.measures.tokens.probes import MlpProbe as MlpProbe
from identilens.measures.tokens.probes import NaiveProbe as NaiveProbe
from identilens.measures.tokens.probes import Probe as Probe
from identilens.measures.tokens.probes import RidgeProbe as RidgeProbe
from identilens.measures.tokens.splits import Split as Split
from identilens.measures.tokens.splits import keep_training_share as keep_training_share
from identilens.measures.tokens.splits import split_sentences as split_sentences
from identilens.measures.tokens.splits import token_rows as token_rows
from identilens.measures.tokens.training import PAPER_RATES as PAPER_RATES
from identilens.measures.tokens.training import Job as Job
from identilens.measures.tokens.training import Outcome as Outcome
from identilens.measures.tokens.training import Progress as Progress
from identilens.measures.tokens.training import Schedule as Schedule
from identilens.measures.tokens.training import train_probes as train_probes

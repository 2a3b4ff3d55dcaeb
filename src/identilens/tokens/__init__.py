"""Token identifiability: can the input token still be read off its hidden state (Brunner et al. 2020, 4)."""

from identilens.tokens.analysis import token_identifiability as token_identifiability
from identilens.tokens.closed_form import RidgeFit as RidgeFit
from identilens.tokens.closed_form import fit_ridge as fit_ridge
from identilens.tokens.extraction import HiddenStates as HiddenStates
from identilens.tokens.extraction import extract as extract
from identilens.tokens.fitting import FittedProbe as FittedProbe
from identilens.tokens.fitting import fit_probes as fit_probes
from identilens.tokens.lookup import LookUp as LookUp
from identilens.tokens.lookup import look_up as look_up
from identilens.tokens.probes import LinearProbe as LinearProbe
from identilens.tokens.probes import MlpProbe as MlpProbe
from identilens.tokens.probes import NaiveProbe as NaiveProbe
from identilens.tokens.probes import Probe as Probe
from identilens.tokens.probes import RidgeProbe as RidgeProbe
from identilens.tokens.settings import TokenSettings as TokenSettings
from identilens.tokens.splits import Split as Split
from identilens.tokens.splits import keep_training_share as keep_training_share
from identilens.tokens.splits import split_sentences as split_sentences
from identilens.tokens.splits import token_rows as token_rows
from identilens.tokens.stack import PAPER_RATES as PAPER_RATES
from identilens.tokens.stack import Job as Job
from identilens.tokens.training import Outcome as Outcome
from identilens.tokens.training import Progress as Progress
from identilens.tokens.training import Schedule as Schedule
from identilens.tokens.training import train_probes as train_probes

"""All reasons, by family. A new code goes to its family here, its text to the module of that name in `messages`."""

from commonage.domain.reasons import attempts as attempts
from commonage.domain.reasons import classes as classes
from commonage.domain.reasons import cron_jobs as cron_jobs
from commonage.domain.reasons import devices as devices
from commonage.domain.reasons import engines as engines
from commonage.domain.reasons import materials as materials
from commonage.domain.reasons import nodes as nodes
from commonage.domain.reasons import notes as notes
from commonage.domain.reasons import offboarding as offboarding
from commonage.domain.reasons import refusals as refusals
from commonage.domain.reasons import resources as resources
from commonage.domain.reasons import waiting as waiting
from commonage.domain.reasons.base import REASONS as REASONS
from commonage.domain.reasons.base import Reason as Reason

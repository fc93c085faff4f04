"""Texts of `commonage.domain.reasons.cron_jobs`."""

from __future__ import annotations

from commonage.domain.reasons import cron_jobs as r
from commonage.messages.template import Say, Texts, moment


def _older(missed: int) -> str:
    more = " or more" if missed >= r.MAX_COUNTED else ""
    return f"{missed}{more} older {'time was' if missed == 1 else 'times were'} missed"


def _refused(reason: r.CronRunRefused, say: Say) -> str:
    older = f" {_older(reason.missed)}, too." if reason.missed else ""
    return f"Cron job {reason.name} did not run at {moment(reason.due_at)}. {say(reason.cause)}{older}"


TEXTS: Texts = {
    r.CronJobCreated: "{by} created cron job {name} ({id}): {schedule} in {time_zone}.",
    r.CronJobRemoved: "{by} removed cron job {name} ({id}).",
    r.CronJobHandedOver: "{by} handed cron job {name} ({id}) over to {owner} in tenant {tenant}.",
    r.CronJobSuspended: "{by} suspended cron job {name} ({id}).",
    r.CronJobResumed: "{by} resumed cron job {name} ({id}). Times that passed meanwhile are skipped.",
    r.CronJobTriggered: "{by} ran cron job {name} ({id}) outside its schedule: {workload_id}.",
    r.CronRunRefused: _refused,
    r.CronRunsMissed: lambda reason, _: (
        f"Cron job {reason.name} runs for {moment(reason.due_at)}. {_older(reason.missed)}, and not repeated."
    ),
    r.StartingDeadlinePassed: "It is {late_s} late, and its starting deadline is {deadline_s}.",
    r.PreviousRunActive: "The previous run, {workload_id}, has not ended.",
    r.ReplacedByNextRun: "Replaced: the next run of cron job {name} was due at {due_at}.",
    r.SiteFiresCronJob: (
        "Site {site} is unreachable since {since}. It fires this cron job itself, and reports the runs when it is "
        "connected again."
    ),
    r.StartedBySite: (
        "Site {site} started this run of cron job {name}, due at {due_at}, by itself while its link was down."
    ),
    r.TakenByCronRun: "{workload_id}, a run of a cron job, took its place on {node} while the link was down.",
    r.OwnerMayNotSubmit: (
        "{owner} may not submit to tenant {tenant} any more. Ask its manager for a role, or remove the cron job."
    ),
}

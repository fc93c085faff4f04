"""Texts for people whose sign-in from a learning platform is refused. Each says what to do next."""

from __future__ import annotations

_AGAIN = "Open the link in your course again."


def _ask(cause: str, helper: str, remedy: str) -> str:
    return f"{cause} Ask {helper} {remedy}."


def _retry(cause: str, helper: str, remedy: str = "") -> str:
    return f"{cause} {_AGAIN} If that fails, ask {helper}{remedy and f' {remedy}'}."


def from_course(platform: str) -> str:
    """For the sign-in page, where no launch has come from the platform."""
    return f"You sign in from your course: open the link to this server in {platform}."


def not_this_browser(helper: str) -> str:
    return (
        f"This sign-in did not begin in this browser, was used before, or took longer than 10 minutes. {_AGAIN} "
        "If that fails each time, the platform shows this page in a frame, where browsers block its cookies: "
        f"ask {helper} to let the link open in a new window."
    )


def unknown_platform(issuer: str, helper: str) -> str:
    cause = f'This server takes no sign-ins from the platform "{issuer[:100]}".'
    return _ask(cause, helper, "to compare your learning platform's issuer with the option `issuer`")


def unknown_client(client_id: str, helper: str) -> str:
    cause = f'The platform sent the client id "{client_id[:100]}", but this server has another one.'
    return _ask(cause, helper, "to compare it with the option `client_id`")


def no_login_hint() -> str:
    return f"The platform did not say who wants to sign in (`login_hint` is missing). {_AGAIN}"


def platform_refused(error: str, helper: str) -> str:
    return _retry(f'The learning platform refused the sign-in: "{error[:200]}". Sign in there first.', helper)


def keys_unavailable() -> str:
    return f"The learning platform does not answer, so its signature cannot be checked. Wait a minute. {_AGAIN}"


def bad_signature(helper: str) -> str:
    remedy = "to compare the option `jwks_url` with the platform's keyset URL"
    return _retry("This sign-in has no valid signature of the configured platform.", helper, remedy)


def expired(helper: str) -> str:
    remedy = "to compare the clocks of this server and the platform"
    return _retry("This sign-in has expired.", helper, remedy)


def malformed(problem: str, helper: str) -> str:
    return _retry(f"The platform sent a sign-in that LTI 1.3 does not allow: {problem[:200]}.", helper)


def unknown_deployment(deployment: str, helper: str) -> str:
    cause = f'The platform named the deployment "{deployment[:100]}", which this server does not know.'
    return _ask(cause, helper, "to add it to the option `deployment_ids`, if it is theirs")


def not_a_resource_link(kind: str, helper: str) -> str:
    cause = f'The platform sent a message of the type "{kind[:60]}", but this server accepts only links in a course.'
    return _ask(cause, helper, "to switch off deep linking for this tool")


def blocked(helper: str) -> str:
    return _ask("Your user name is blocked here.", helper, "why")


def no_user_name(claim: str, helper: str) -> str:
    cause = f"The platform did not send `{claim}`, from which this server makes your user name."
    return _ask(cause, helper, "to let the platform send it, or to change the option `username_claim`")


def unusable_user_name(name: str, helper: str) -> str:
    cause = (
        f'The platform calls you "{name[:100]}", which cannot be a user name here. '
        "A user name has lower-case letters, digits and . _ @ + -, 63 at most."
    )
    return _ask(cause, helper, "to change the option `username_claim`")


def course_not_admitted(course: str, title: str, helper: str) -> str:
    where = f'the course "{title[:100]}" (id {course[:100]})' if course else "a page outside of all courses"
    cause = f"You come from {where}, which this server does not admit."
    return _ask(cause, helper, "to add the course to the option `allowed_courses`")

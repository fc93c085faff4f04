"""Texts for people whose sign-in from a learning platform is refused. Each says what to do next."""

from __future__ import annotations

AGAIN = "Open the link in your course again."


def from_course(platform: str) -> str:
    """For the sign-in page, where no launch has come from the platform."""
    return f"You sign in from your course: open the link to this server in {platform}."


def not_this_browser(helper: str) -> str:
    return (
        "This sign-in did not begin in this browser, was used before, or took longer than 10 minutes. "
        f"{AGAIN} If that fails each time, the platform shows this page inside its own, where browsers refuse its "
        f"cookies: ask {helper} to let the link open in a new window."
    )


def unknown_platform(issuer: str, helper: str) -> str:
    return (
        f'This server takes no sign-ins from the platform "{issuer[:100]}". If that is your learning platform, ask '
        f"{helper} to compare its issuer with the option `issuer`."
    )


def unknown_client(client_id: str, helper: str) -> str:
    return (
        f'The platform calls this server by the client id "{client_id[:100]}", which is not the configured one. Ask '
        f"{helper} to compare it with the option `client_id`."
    )


def no_login_hint() -> str:
    return f"The platform did not say who is to sign in (`login_hint` is missing). {AGAIN}"


def platform_refused(error: str, helper: str) -> str:
    return (
        f'The learning platform refused the sign-in: "{error[:200]}". Sign in there first. {AGAIN} If that fails, ask '
        f"{helper}."
    )


def keys_unavailable() -> str:
    return f"The learning platform does not answer, so its signature cannot be checked. Wait a minute. {AGAIN}"


def bad_signature(helper: str) -> str:
    return (
        "The signature of this sign-in is not by the configured platform. "
        f"{AGAIN} If that fails, ask {helper} to compare the option `jwks_url` with the platform's keyset URL."
    )


def expired(helper: str) -> str:
    return (
        f"This sign-in has expired. {AGAIN} If that fails, ask {helper} to compare the clocks of this server and the "
        "platform."
    )


def malformed(problem: str, helper: str) -> str:
    return (
        f"The platform sent a sign-in that LTI 1.3 does not allow: {problem[:200]}. {AGAIN} If that fails, ask "
        f"{helper}."
    )


def unknown_deployment(deployment: str, helper: str) -> str:
    return (
        f'The platform names the deployment "{deployment[:100]}", which this server does not know. Ask {helper} to add '
        "it to the option `deployment_ids`, if it is one of theirs."
    )


def not_a_resource_link(kind: str, helper: str) -> str:
    return (
        f'The platform sent a message of the type "{kind[:60]}", and this server only takes links that people open. '
        f"Ask {helper} to switch off deep linking for this tool."
    )


def blocked(helper: str) -> str:
    return f"Your user name is blocked here. Ask {helper} why."


def no_user_name(claim: str, helper: str) -> str:
    return (
        f"The platform did not send `{claim}`, from which your user name is made. Ask {helper} to let the platform "
        "send it, or to choose another option `username_claim`."
    )


def unusable_user_name(name: str, helper: str) -> str:
    return (
        f'The platform calls you "{name[:100]}", which cannot be a user name here: lower-case letters, digits and '
        f". _ @ + - are possible, 63 at most. Ask {helper} to choose another option `username_claim`."
    )


def course_not_admitted(course: str, title: str, helper: str) -> str:
    where = f'the course "{title[:100]}" (id {course[:100]})' if course else "a place outside of all courses"
    return (
        f"You come from {where}, which this server does not admit. Ask {helper} to add the course to the option "
        "`allowed_courses`."
    )

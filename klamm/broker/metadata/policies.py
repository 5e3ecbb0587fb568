"""Asks the policies of create.topic.policy.class.name and alter.config.policy.class.name.

A policy is the operator's own code. What must stay true, whatever it does:
- A policy is asked off the loop, so other requests are served meanwhile.
- Each policy has one pending question at a time, so a policy that never answers blocks only one thread. Until it
  answers, further questions are refused.
- Without a positive answer the request is refused.
- The broker's stop does not wait for policies.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from klamm.base.environment import Environment
from klamm.base.tasks import OnFailure, start_task
from klamm.plugins.policies import PolicyViolation
from klamm.protocol.error_codes import ErrorCode, KafkaError

R = TypeVar("R")

ANSWER_WITHIN_MS = 10_000

_log = logging.getLogger(__name__)


class Policy(Generic[R]):
    """One policy; `validate` is the method that the operator's class defines. `key` names it in errors."""

    def __init__(
        self, key: str, validate: Callable[[R], None], environment: Environment, on_failure: OnFailure
    ) -> None:
        self._key = key
        self._validate = validate
        self._environment = environment
        self._on_failure = on_failure
        self._turn = asyncio.Lock()
        self._late: asyncio.Task[None] | None = None

    async def check(self, request: R) -> None:
        """Returns if the policy allows the request.

        Raises KafkaError: POLICY_VIOLATION with the policy's message, or UNKNOWN_SERVER_ERROR if the policy fails
        otherwise or does not answer.
        """
        async with self._turn:
            if self._late is not None and not self._late.done():
                raise self._silence()
            objections: list[str | BaseException] = []
            self._late = start_task(self._ask(request, objections), self._on_failure)
            try:
                async with asyncio.timeout(ANSWER_WITHIN_MS / 1000):
                    await asyncio.shield(self._late)
            except TimeoutError:
                raise self._silence() from None
        for objection in objections:
            if isinstance(objection, str):
                raise KafkaError(ErrorCode.POLICY_VIOLATION, objection)
            # Without the request: its values may be secret.
            _log.error("the policy of %s has failed", self._key, exc_info=objection)
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"the policy of {self._key} has failed; see the broker's log"
            )

    async def _ask(self, request: R, objections: list[str | BaseException]) -> None:
        objection = await self._environment.run_foreign(_objection, self._validate, request)
        if objection is not None:
            objections.append(objection)

    def _silence(self) -> KafkaError:
        return KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"the policy of {self._key} has not answered for {ANSWER_WITHIN_MS / 1000:g} s",
        )


def _objection(validate: Callable[[R], None], request: R) -> str | BaseException | None:
    """The message with which the policy refuses the request, or the error with which it has failed."""
    try:
        try:
            validate(request)
        except PolicyViolation as violation:
            return str(violation).encode(errors="replace").decode()
    except BaseException as error:  # also SystemExit: a policy does not end the broker
        return error
    return None

"""The bounded share of prefill work that late requests get while on-time ones wait.

Strictly serving late requests last starves them under load; serving everything old first destroys the gain of
the plan. So on-time prefill earns late requests a credit, and the oldest late request goes as soon as the
credit covers it.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class LateShare:
    """Turns on-time work into the right of the first late request to go.

    With share s a late prompt of p tokens waits for at most p(1-s)/s on-time tokens once it is first.
    """

    share: float
    _credit_tokens: float = 0.0

    def owed(self, tokens: int) -> bool:
        """May a late prompt of this length go before the on-time ones now?"""
        if self.share >= 1.0:
            return True
        return self.share > 0.0 and self._credit_tokens >= tokens

    def on_time_went(self, tokens: int, late_tokens: int) -> None:
        """On-time tokens were dispatched while a late prompt of `late_tokens` was first among the late.

        Credit beyond that one prompt is not kept, so late requests never go in a burst.
        """
        if self.share >= 1.0:
            return
        earned = self._credit_tokens + tokens * self.share / (1.0 - self.share)
        self._credit_tokens = min(earned, float(late_tokens))

    def late_went(self, tokens: int) -> None:
        """A late prompt was dispatched while on-time ones waited."""
        self._credit_tokens = max(0.0, self._credit_tokens - tokens)

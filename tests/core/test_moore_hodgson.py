"""The plan is as good as the best of all subsets."""

from itertools import combinations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from prism.core.moore_hodgson import Job, plan

# Dyadic times: sums are exact, so equality with brute force needs no tolerance.
times = st.integers(0, 40).map(lambda n: n / 8)
jobs = st.lists(
    st.tuples(times, st.integers(-8, 120).map(lambda n: n / 8), st.integers(0, 2)), max_size=8
).map(lambda rows: [Job(seq, work, due, priority) for seq, (work, due, priority) in enumerate(rows)])


def feasible(subset: tuple[Job, ...], start_s: float) -> bool:
    finish_s = start_s
    for job in sorted(subset, key=lambda j: j.due_s):
        finish_s += job.work_s
        if finish_s > job.due_s:
            return False
    return True


def most_on_time(jobs: list[Job], start_s: float) -> int:
    sizes = range(len(jobs), 0, -1)
    return next((n for n in sizes if any(feasible(c, start_s) for c in combinations(jobs, n))), 0)


@given(jobs, times)
def test_equals_brute_force(jobs: list[Job], start_s: float) -> None:
    result = plan(jobs, start_s)
    assert len(result.on_time) == most_on_time(jobs, start_s)
    assert feasible(result.on_time, start_s)


@given(jobs, times)
def test_every_job_is_planned_once_in_the_promised_order(jobs: list[Job], start_s: float) -> None:
    result = plan(jobs, start_s)
    assert sorted(j.seq for j in (*result.on_time, *result.late)) == [j.seq for j in jobs]
    assert list(result.on_time) == sorted(result.on_time, key=lambda j: (j.due_s, -j.priority, j.seq))
    assert list(result.late) == sorted(result.late, key=lambda j: (-j.priority, j.seq))


@given(jobs, st.randoms(use_true_random=False))
def test_the_order_jobs_are_given_in_does_not_matter(jobs: list[Job], random: Random) -> None:
    shuffled = list(jobs)
    random.shuffle(shuffled)
    assert plan(shuffled) == plan(jobs)


def test_work_in_flight_makes_a_job_late() -> None:
    job = Job(0, work_s=1.0, due_s=1.5)
    assert plan([job]).on_time == (job,)
    assert plan([job], start_s=1.0).late == (job,)


def test_the_longest_job_is_given_up() -> None:
    short, long, urgent = Job(0, 1.0, 3.0), Job(1, 2.5, 3.0), Job(2, 1.0, 2.0)
    result = plan([short, long, urgent])
    assert result.on_time == (urgent, short)
    assert result.late == (long,)

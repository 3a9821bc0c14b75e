"""Virtual time: the schedulers of `prism.core` against simulated engines; replays of recorded event logs."""

from prism.sim.profile import EngineProfile, Profile, ProfileError, load_profile
from prism.sim.setup import SimModel, SimSetup
from prism.sim.simulate import simulate

__all__ = ["EngineProfile", "Profile", "ProfileError", "SimModel", "SimSetup", "load_profile", "simulate"]

"""Every way to count time and mix noise, against the exact denoiser of a Gaussian, whatever its form."""

import diffusers
import pytest
import torch

from diti.core.errors import InputError
from diti.diffusion.clock import EDM, FLOW, Clock
from diti.diffusion.generate import round_trip
from diti.diffusion.kinds.own import backbone
from diti.diffusion.schedule import Schedule

VARIANCE = 0.25  # of every pixel, mean 0


class Exact(torch.nn.Module):
    """What the ideal network of a Gaussian says of y = a x0 + s noise: E[x0 | y] = a v y / (a² v + s²)."""

    def __init__(self, form: str, mix) -> None:
        super().__init__()
        self.form, self.mix = form, mix
        self.levels = torch.nn.ModuleList([torch.nn.Conv2d(3, 3, 1)])  # something to look at

    def forward(self, y, time):
        self.levels[0](y)
        a, s = (one.double().reshape(-1, 1, 1, 1) for one in self.mix(time))
        y = y.double()
        x0 = a * VARIANCE * y / (a**2 * VARIANCE + s**2)
        noise = (y - a * x0) / s
        forms = {"sample": x0, "epsilon": noise, "flow": noise - x0, "v_prediction": a * noise - s * x0}
        return forms[self.form].float()


def discrete(schedule):
    return lambda t: (schedule.alpha_bar[t].sqrt(), (1 - schedule.alpha_bar[t]).sqrt())


def flowing(time):
    return 1 - time.double() / 1000, time.double() / 1000


def exploding(time):
    return torch.ones_like(time.double()), time.double()


COSINE = Schedule.cosine(200)
FORMS = {
    "epsilon": ("epsilon", "linear", discrete(Schedule.linear())),
    "v": ("v_prediction", COSINE, discrete(COSINE)),
    "x0": ("sample", COSINE.betas.tolist(), discrete(COSINE)),
    "flow": ("flow", FLOW, flowing),
    "shifted flow": ("flow", Clock.flow(500, shift=3.0), flowing),
    "edm": ("sample", EDM, exploding),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_says_the_same_of_the_same_picture(name):
    predicts, schedule, mix = FORMS[name]
    mine = backbone(Exact(predicts, mix), schedule=schedule, predicts=predicts, size=4)
    x = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    for share in (0.05, 0.5, 0.95):
        t = torch.full((3,), int(share * mine.timesteps))
        abar = mine.schedule.alpha_bar[t[0]].item()
        expected = abar**0.5 * VARIANCE / (abar * VARIANCE + 1 - abar) * x  # of the variance-preserving x_t
        assert torch.allclose(mine.x0(x, t), expected, rtol=1e-3, atol=2e-4)
        noise = (x - abar**0.5 * expected) / (1 - abar) ** 0.5
        assert torch.allclose(mine.eps(x, t), noise, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_inverted_and_comes_back(name):
    predicts, schedule, mix = FORMS[name]
    mine = backbone(Exact(predicts, mix), schedule=schedule, predicts=predicts, size=4)
    x = VARIANCE**0.5 * torch.randn(256, 3, 4, 4, generator=torch.Generator().manual_seed(2))
    errors = [((round_trip(mine, x, n) - x).square().mean() / VARIANCE).item() for n in (10, 20, 50)]
    print(f"{name}: lost in a round trip of 10, 20 and 50 steps each way:", *(f"{error:.1e}" for error in errors))
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-5


def test_the_noise_of_a_flow_is_pure_at_its_end():
    clock = Clock.flow(100)
    assert clock.schedule.alpha_bar[-1] == 0 and clock.time[-1] == 1000 and clock.scale[-1] == 1
    sigma = (torch.arange(1, 101).double() / 100)[:-1]
    assert torch.allclose(clock.schedule.alpha_bar[:-1], (1 - sigma) ** 2 / ((1 - sigma) ** 2 + sigma**2))


def test_flux_s_shift_grows_with_the_patches_of_an_image():
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    few, many = (Clock.of_scheduler(scheduler, patches)[0] for patches in (256, 4096))
    for clock, mu in ((few, 0.5), (many, 1.15)):
        scheduler.set_timesteps(1000, mu=mu)
        told = scheduler.timesteps.flip(0)
        assert torch.allclose(clock.time[-500:], told[-500:], rtol=2e-2)


@pytest.mark.parametrize("given", ["lineal", object(), 3.5, [0.1, 2.0]])
def test_nonsense_is_no_schedule(given):
    with pytest.raises(InputError, match=r"schedule|betas"):
        Clock.of(given)


@pytest.mark.parametrize(
    ("a", "s", "time", "said"),
    [
        (torch.ones(3), torch.linspace(0.1, 1, 3), torch.arange(2), r"shapes \(3,\), \(3,\), \(2,\)"),
        (torch.ones(0), torch.ones(0), torch.ones(0), "at least one step"),
        (torch.linspace(1, 0.5, 3), torch.linspace(0, 1, 3), torch.arange(3), "s / a goes from 0 to 2"),
        (torch.ones(3), torch.tensor([0.1, 0.5, 0.4]), torch.arange(3), "must rise at every step"),
    ],
)
def test_a_mix_must_add_noise_at_every_step(a, s, time, said):
    with pytest.raises(InputError, match=said):
        Clock.of_mix(a, s, time)

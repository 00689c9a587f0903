"""Muon's step against the singular value decomposition and a slow loop; everything else is Adam, bit for bit."""

import pytest
import torch

from diti.core.muon import MOMENTUM, MuonAdam, orthogonal


@pytest.mark.parametrize("shape", [(12, 12), (8, 30), (30, 8), (1, 5), (6, 1)])
def test_the_nearest_orthogonal_matrix(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    turned = u.T @ orthogonal(matrix) @ vt.T  # diagonal where it has the singular vectors of the matrix
    values = turned.diagonal()
    torch.testing.assert_close(turned, torch.diag(values), atol=1e-9, rtol=0)
    clear = s / s.norm() > 0.01  # the polynomial lifts tiny values only part of the way
    assert ((values[clear] > 0.6) & (values[clear] < 1.3)).all()
    assert orthogonal(torch.zeros(shape)).abs().max() == 0, "nothing is learned from no gradient"


@pytest.mark.parametrize("shape", [(12, 12), (8, 300), (300, 8)])
def test_it_is_the_iteration_over_the_whole_matrix(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    x = (matrix / matrix.norm()).double()
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * (x @ x.T @ x) + 2.0315 * (x @ x.T @ x @ x.T @ x)
    torch.testing.assert_close(orthogonal(matrix).double(), x, atol=1e-4, rtol=0)
    flat = matrix @ torch.diag(10.0 ** -torch.linspace(0, 12, shape[1]))  # with directions that float32 cannot see
    assert torch.linalg.matrix_norm(orthogonal(flat), 2) < 1.4


def parameters():
    rng = torch.Generator().manual_seed(2)
    return [torch.nn.Parameter(torch.randn(shape, generator=rng)) for shape in ((6, 4, 3, 3), (5, 7), (7,))]


def gradients(step):
    rng = torch.Generator().manual_seed(100 + step)
    return [torch.randn(p.shape, generator=rng) for p in parameters()]


def optimizer_of(ours, **settings):
    """Muon for the matrices, Adam for the rest."""
    groups = [{"params": ours[:2], "orthogonal": True}, {"params": ours[2:], "orthogonal": False}]
    return MuonAdam(groups, **settings)


def set_gradients(ours, step, scale=lambda gradient: gradient):
    for parameter, gradient in zip(ours, gradients(step), strict=True):
        parameter.grad = scale(gradient)


def test_steps_equal_a_slow_loop_and_adam():
    ours, alone, loop = parameters(), parameters(), [p.detach().clone() for p in parameters()[:2]]
    both, adam = optimizer_of(ours, lr=0.01, fused=True), torch.optim.Adam(alone[2:], lr=0.01, fused=True)
    momenta = [torch.zeros_like(p) for p in loop]
    for step in range(4):
        set_gradients(ours, step)
        alone[2].grad = gradients(step)[2]
        both.step()
        adam.step()
        for place, gradient in enumerate(gradients(step)[:2]):
            momenta[place] = MOMENTUM * momenta[place] + (1 - MOMENTUM) * gradient
            wanted = MOMENTUM * momenta[place] + (1 - MOMENTUM) * gradient
            rows, columns = len(wanted), wanted[0].numel()
            turned = orthogonal(wanted.reshape(rows, columns)).reshape(wanted.shape)
            loop[place] -= 0.01 * 0.2 * max(rows, columns) ** 0.5 * turned
    assert torch.equal(ours[2], alone[2])
    for parameter, expected in zip(ours[:2], loop, strict=True):
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-5, rtol=0)
    assert len(both.param_groups) == 2 and set(both.state[ours[0]]) == {"step", "momentum"}


def test_a_step_is_about_as_large_as_one_of_adam():
    ours, alone = parameters()[:1], parameters()[:1]
    both, adam = MuonAdam([{"params": ours, "orthogonal": True}], lr=0.01), torch.optim.Adam(alone, lr=0.01)
    for step in range(20):
        ours[0].grad = alone[0].grad = gradients(step)[0]
        before = [ours[0].detach().clone(), alone[0].detach().clone()]
        both.step()
        adam.step()
    sizes = [(p[0] - b).square().mean().sqrt() for p, b in zip((ours, alone), before, strict=True)]
    assert 0.5 < sizes[0] / sizes[1] < 2


def test_a_loaded_state_goes_on_as_the_saved_one():
    made = []
    for loads in (False, True):
        ours = parameters()
        both = optimizer_of(ours, lr=0.01)
        for step in range(4):
            set_gradients(ours, step)
            both.step()
            if loads:
                both.load_state_dict(both.state_dict())
        made.append(ours)
    assert all(torch.equal(p, q) for p, q in zip(*made, strict=True))


def test_what_has_no_gradient_stays():
    ours = parameters()
    optimizer_of(ours, lr=1.0).step()
    assert all(torch.equal(p, q) for p, q in zip(ours, parameters(), strict=True))


@pytest.mark.parametrize("unscaled_before", [False, True])
def test_steps_of_fp16_are_those_of_unscaled_gradients_and_one_that_overflows_is_skipped(unscaled_before):
    ours, plain = parameters(), parameters()
    both, alone = (optimizer_of(p, lr=0.01, fused=True) for p in (ours, plain))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        set_gradients(ours, step, scaler.scale)
        if overflows := step == 2:
            ours[0].grad[0] = torch.inf
        else:
            set_gradients(plain, step)
            alone.step()
        if unscaled_before:  # as by the clipping of gradients
            scaler.unscale_(both)
        scaler.step(both)
        scaler.update()
        for parameter, expected in zip(ours, plain, strict=True):
            torch.testing.assert_close(parameter, expected, atol=1e-6, rtol=0, msg=f"{step=} {overflows=}")
    assert scaler.get_scale() == 512.0

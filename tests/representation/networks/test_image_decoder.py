"""The network that draws an image from a vector in one go."""

import pytest
import torch

from diti.core.errors import InputError
from diti.core.rng import torch_generator
from diti.representation.networks.image_decoder import ImageDecoder, UpBlock
from diti.representation.networks.network_files import drawn_from

WIDTHS = (16, 8, 4)


def network(size, inputs=5, channels=WIDTHS):
    with drawn_from(0, "test"):
        return ImageDecoder(size, inputs, channels)


def vectors(count, inputs=5):
    return torch.randn(count, inputs, generator=torch_generator(0, "vectors"))


@pytest.mark.parametrize("size", [8, 16, 32, 64, 128])
def test_images_of_any_power_of_two_within_bounds(size):
    images = network(size)(3 * vectors(2))
    assert images.shape == (2, 3, size, size) and images.abs().max() <= 1
    assert not torch.allclose(images[0], images[1], atol=1e-2)


def test_levels_beyond_the_given_widths_keep_the_last():
    widths = [block.conv2.out_channels for block in network(128).blocks]
    assert widths == [16, 8, 4, 4, 4]
    assert [block.doubles for block in network(128).blocks] == [False, True, True, True, True]


def test_rows_do_not_depend_on_each_other():
    decoder, given = network(16), vectors(3)
    assert torch.allclose(decoder(given)[1:2], decoder(given[1:2]), atol=1e-5)


def test_every_weight_learns():
    decoder = network(16)
    decoder(vectors(3)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in decoder.parameters())


def test_a_block_of_zero_convolutions_repeats_its_input_over_twice_the_grid():
    block = UpBlock(4, 4, doubles=True)
    torch.nn.init.zeros_(block.conv2.weight)
    torch.nn.init.zeros_(block.conv2.bias)
    x = torch.arange(16.0).reshape(1, 4, 2, 2)
    assert torch.equal(block(x), x.repeat_interleave(2, 2).repeat_interleave(2, 3))


def test_a_block_without_doubling_is_its_formula():
    block = UpBlock(8, 4, doubles=False)
    x = torch.randn(2, 8, 4, 4, generator=torch_generator(0, "x"))
    h = block.conv1(torch.nn.functional.silu(block.norm1(x)))
    h = block.conv2(torch.nn.functional.silu(block.norm2(h)))
    mixed = torch.einsum("oi,bihw->bohw", block.shortcut.weight[:, :, 0, 0], x)
    expected = mixed + block.shortcut.bias[None, :, None, None] + h
    assert torch.allclose(block(x), expected, atol=1e-5)


def test_it_can_draw_a_given_image():
    decoder, given = network(16, channels=(32, 16)), vectors(2)
    target = torch.rand(2, 3, 4, 4, generator=torch_generator(0, "target")) - 0.5
    target = target.repeat_interleave(4, 2).repeat_interleave(4, 3)
    adam = torch.optim.Adam(decoder.parameters(), 5e-3)
    for _ in range(60):
        loss = (decoder(given) - target).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert loss.item() < 0.1 * target.var().item()


@pytest.mark.parametrize("size", [0, 4, 12, 24, 48, 100])
def test_other_sizes_are_refused(size):
    with pytest.raises(InputError, match=rf"the image is {size} px; .* draws 8, 16, 32, 64"):
        network(size)


@pytest.mark.parametrize("channels", [(), (8, 0)])
def test_widths_must_be_positive(channels):
    with pytest.raises(InputError, match="give at least one positive width"):
        network(16, channels=channels)

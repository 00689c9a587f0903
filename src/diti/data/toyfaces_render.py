"""The painter behind toyfaces: soft shapes, colours, and the parts of a face.

Only + - * / sqrt, minimum, maximum and comparisons are used. IEEE arithmetic rounds these the same way in
every lane of every vector unit, so an image has the same bytes whatever batch it is painted in.

The frame is [-1, 1] x [-1, 1], x to the right and y down. N faces are painted at once, with the faces as the
last axis of every array: (h, w, N) for pixels, (w, N) and (h, N) for what depends on one coordinate, (N,) for
what depends on the face alone. A shape is computed only inside a box that holds it in all N faces.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]  # float32 throughout
Scalar = Array | float  # one value per face, or the same for all
Box = tuple[slice, slice]  # rows and columns of the canvas
SIDES = (-1, 1)  # left and right in the picture


# --- colours --------------------------------------------------------------------------------------


def colours(*codes: str) -> Array:
    """(K, 3) colours in 0..1 from codes such as "F4A58A"."""
    return np.array([[int(code[i : i + 2], 16) for i in (0, 2, 4)] for code in codes], np.float32) / 255


BACKGROUNDS = colours("F28D86", "F8B477", "F8DC8C", "AEDC98", "7DCFBF", "7DB9EA", "9D98E8", "D893D8")
CLOTHES = colours("D94A4A", "F08A3C", "F0C040", "5FAE6B", "2F9C9C", "3A6FB8", "6A4C9C", "B8457F")
HAIR = colours("2A2530", "4F3326", "8C4A2A", "D9742E", "F2CB6C", "F59AB5", "9A78DC", "3DA9B8")
SKIN = colours("FFE3D0", "FAD0AE", "EDB584", "CF9160", "A56C44", "7C4C31")
IRIS = colours("5B3822", "9A6B2C", "5E9E4C", "3A8FD0", "7D5CCB")
WHITE, INK, GOLD, BRASS, FRAME = colours("FFFFFF", "2A2130", "FFCB3D", "CC9A2A", "3A3350")
BLUSH, MOUTH, TONGUE = colours("F2506A", "7A2233", "F08A90")
SHADE, FRECKLE, DUSK, DAYLIGHT = (  # what they multiply, channel by channel
    np.array(gain, np.float32)[:, None]
    for gain in ((0.84, 0.74, 0.74), (0.60, 0.45, 0.40), (0.70, 0.67, 0.75), (1.07, 1.07, 1.07))
)


def along(palette: Array, position: Array) -> Array:
    """(3, N) colours at `position` in 0..1 on the path that joins the colours of `palette`."""
    place = position * np.float32(len(palette) - 1)
    first = np.minimum(place.astype(np.intp), len(palette) - 2)
    return mix(palette[first].T, palette[first + 1].T, place - first.astype(np.float32))


def mix(a: Array, b: Array, share: Scalar) -> Array:
    """(3, N) colour that is `share` of b and the rest of a; a single colour (3,) counts for all faces."""
    a, b = (c[:, None] if c.ndim == 1 else c for c in (a, b))
    return a + (b - a) * share


# --- shapes ---------------------------------------------------------------------------------------


class Canvas:
    """N square pictures of `size` pixels, painted one shape at a time from back to front.

    A shape is a cover: the share 0..1 of each pixel that it fills, from the signed distance to its outline.
    """

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self.pixel = np.float32(2 / size)  # width of a pixel in the frame
        middles = np.arange(size, dtype=np.float32) + np.float32(0.5)
        self.at = (middles * self.pixel - 1)[:, None]  # (size, 1), x of the columns and y of the rows
        self.planes = [np.empty((size, size, count), np.float32) for _ in range(3)]  # red, green, blue

    def box(self, x: Scalar, y: Scalar, half_width: Scalar, half_height: Scalar) -> Box:
        """The pixels that a shape within (x, y) +- (half_width, half_height) can touch in any face."""
        return self._reach(y, half_height), self._reach(x, half_width)

    def _reach(self, centre: Scalar, half: Scalar) -> slice:
        first = (float(np.min(centre - half)) + 1) / float(self.pixel)
        last = (float(np.max(centre + half)) + 1) / float(self.pixel)
        # The soft edge ends half a pixel outside: one more pixel on each side holds it.
        return slice(min(max(int(first) - 1, 0), self.size), min(max(int(last) + 2, 0), self.size))

    def paint(self, box: Box, cover: Array, colour: Array) -> None:
        """Lay `colour`, (3,) or (3, N), over the pixels of the box with opacity `cover` (h, w, N)."""
        for plane, value in zip(self.planes, colour, strict=True):
            below = plane[box]
            layer = value - below
            layer *= cover
            below += layer

    def oval(
        self, box: Box, x: Scalar, y: Scalar, rx: Scalar, ry: Scalar, flat_x: Scalar = 0.0, flat_y: Scalar = 0.0
    ) -> Array:
        """Cover (h, w, N) of an ellipse, or of a rounded bar with straight sides of half length flat_*.

        With k = |(x/rx, y/ry)| and m = |(x/rx^2, y/ry^2)|, the distance to the outline is (1 - k) k / m to
        first order, exactly so for a circle. `tiny` gives k / m its limit in the middle, where both vanish.
        """
        tiny = np.float32(1e-6)
        ux = np.maximum(np.abs(self.at[box[1]] - x) - flat_x, 0) / rx  # (w, N)
        uy = np.maximum(np.abs(self.at[box[0]] - y) - flat_y, 0) / ry  # (h, N)
        k = (ux * ux + tiny) + (uy * uy)[:, None]
        ux /= rx
        uy /= ry
        m = (ux * ux + tiny / (rx * ry)) + (uy * uy)[:, None]
        np.divide(k, m, out=m)
        np.sqrt(m, out=m)
        np.sqrt(k, out=k)
        np.subtract(1, k, out=k)
        k *= m
        return self.edge(k)

    def line(self, box: Box, x: Scalar, y: Scalar, dx: Scalar, dy: Scalar, radius: Scalar) -> Array:
        """Cover of a line from (x - dx, y - dy) to (x + dx, y + dy), drawn with a round pen of `radius`."""
        px = self.at[box[1]] - x  # (w, N)
        py = (self.at[box[0]] - y)[:, None]  # (h, 1, N)
        length2 = dx * dx + dy * dy
        share = (px * dx / length2) + (py * dy / length2)  # where on the line the nearest point lies
        np.clip(share, -1, 1, out=share)
        away_x = px - share * dx
        away_y = py - share * dy
        away_x *= away_x
        away_y *= away_y
        away_x += away_y
        np.sqrt(away_x, out=away_x)
        return self.edge(np.subtract(radius, away_x, out=away_x))

    def crescent(
        self, box: Box, x: Scalar, y: Scalar, half: Scalar, upper: Scalar, lower: Scalar, thick: Scalar
    ) -> Array:
        """Cover between the parabolas y + upper (1 - u^2) and y + lower (1 - u^2), u = -1..1 over x +- half.

        The outline is drawn with a pen of radius `thick` that thins out towards the corners.
        """
        u = (self.at[box[1]] - x) / half  # (w, N)
        arch, slope = 1 - u * u, 2 * u / half
        rows = self.at[box[0]][:, None]  # (h, 1, 1)
        inside = (rows - (y + upper * arch)) / np.sqrt(1 + (upper * slope) ** 2)
        np.minimum(inside, ((y + lower * arch) - rows) / np.sqrt(1 + (lower * slope) ** 2), out=inside)
        inside += thick * np.minimum(arch * 4, 1)
        return self.edge(inside)

    def edge(self, inside: Array) -> Array:
        """Turn a signed distance, positive inside, into a cover that rises from 0 to 1 over one pixel."""
        inside /= self.pixel
        inside += np.float32(0.5)
        return np.clip(inside, 0, 1, out=inside)

    def glow(self, box: Box, x: Scalar, y: Scalar, rx: Scalar, ry: Scalar) -> Array:
        """Cover (1 - r^2)^2 of a spot without an edge: 1 in the middle, 0 from the ellipse on."""
        ux = (self.at[box[1]] - x) / rx
        uy = (self.at[box[0]] - y) / ry
        fall = (1 - ux * ux) - (uy * uy)[:, None]
        np.maximum(fall, 0, out=fall)
        fall *= fall
        return fall

    def disc(self, colour: Array, x: Scalar, y: Scalar, rx: Scalar, ry: Scalar, share: Scalar = 1.0) -> None:
        """Paint one ellipse with opacity `share`."""
        box = self.box(x, y, rx, ry)
        self.paint(box, self.oval(box, x, y, rx, ry) * share, colour)

    def pixels(self, gain: Array) -> NDArray[np.uint8]:
        """(N, size, size, 3) bytes, after every column is multiplied by its gain (3, size, N)."""
        out = np.empty((self.planes[0].shape[2], self.size, self.size, 3), np.uint8)
        for channel, plane in enumerate(self.planes):
            plane *= gain[channel] * np.float32(255)
            plane += np.float32(0.5)
            np.clip(plane, 0, 255, out=plane)
            out[..., channel] = plane.astype(np.uint8).transpose(2, 0, 1)
        return out


# --- the face -------------------------------------------------------------------------------------


class Face:
    """Where the heads are and what colours they have: (N,) numbers and (3, N) colours."""

    def __init__(self, factors: dict[str, Array]) -> None:
        self.factors = factors
        self.s = 0.89 + 0.22 * factors["head_size"]  # scale: lengths on the head are multiples of it
        self.x, self.y = 0.12 * factors["position"], 0.11  # middle of the head
        self.rx, self.ry = 0.52 * self.s, 0.54 * self.s
        self.look = self.x + 0.13 * self.s * factors["turn"]  # x of the middle of the features, as the head turns
        self.ear = -0.04 * self.s * factors["turn"]  # how far the ears move the other way
        self.skin = along(SKIN, factors["skin"])
        self.shade = self.skin * SHADE  # skin in the shade
        self.hair = along(HAIR, factors["hair_colour"])
        self.clothes = along(CLOTHES, factors["clothes"])

    def __getitem__(self, name: str) -> Array:
        return self.factors[name]


def paint_faces(factors: dict[str, Array], size: int) -> NDArray[np.uint8]:
    """(N, size, size, 3) pictures of N faces from their factors, each (N,) float32."""
    face = Face(factors)
    canvas = Canvas(len(face.x), size)
    for part in PARTS:
        part(canvas, face)
    return canvas.pixels(illumination(canvas, face))


def illumination(canvas: Canvas, face: Face) -> Array:
    """(3, size, N) gain of every column: dusk to daylight, and more light from the left or from the right."""
    side = 1 + 0.2 * face["light"] * canvas.at  # (size, N)
    return mix(DUSK, DAYLIGHT, face["brightness"])[:, None] * side


def background(canvas: Canvas, face: Face) -> None:
    wall = along(BACKGROUNDS, face["background"])
    for plane, value in zip(canvas.planes, wall, strict=True):
        plane[:] = value
    everywhere = (slice(None), slice(None))
    canvas.paint(everywhere, canvas.glow(everywhere, face.x, -0.1, 1.35, 1.35) * 0.38, WHITE)


def back_hair(canvas: Canvas, face: Face) -> None:
    width = face.rx * (1.04 + 0.17 * face["hair_length"])
    drop = 0.42 * face["hair_length"] * face.s  # half the length of hair below its round top
    y = face.y - 0.07 * face.s + drop
    box = canvas.box(face.x, y, width, face.ry + drop)
    canvas.paint(box, canvas.oval(box, face.x, y, width, face.ry, 0.0, drop), face.hair * 0.76)


def body(canvas: Canvas, face: Face) -> None:
    canvas.disc(face.clothes * 0.82, face.x, 1.20, 0.74, 0.50)
    canvas.disc(face.clothes, face.x, 1.23, 0.70, 0.50)
    canvas.disc(mix(face.clothes, WHITE, 0.5), face.x, 0.70, 0.27, 0.14)  # collar
    canvas.disc(face.shade * 0.92, face.x, 0.66, 0.20, 0.13)  # neck


def head(canvas: Canvas, face: Face) -> None:
    s = face.s
    for side in SIDES:
        ear, y = face.x + side * 0.97 * face.rx + face.ear, face.y + 0.08 * s
        canvas.disc(face.shade, ear, y, 0.10 * s, 0.12 * s)
        canvas.disc(face.skin, ear + side * 0.012 * s, y - 0.005 * s, 0.07 * s, 0.085 * s)
    box = canvas.box(face.x, face.y, face.rx, face.ry)
    cover = canvas.oval(box, face.x, face.y, face.rx, face.ry)
    canvas.paint(box, cover, face.shade)
    lit = canvas.glow(box, face.x + 0.17 * s * face["light"], face.y - 0.08 * s, 0.666 * s, 0.69 * s)
    lit *= 2.4
    np.minimum(lit, 1, out=lit)
    lit *= cover
    canvas.paint(box, lit, face.skin)


def cheeks(canvas: Canvas, face: Face) -> None:
    s = face.s
    for side in SIDES:
        x, y = face.look + side * 0.30 * s, face.y + 0.25 * s
        box = canvas.box(x, y, 0.20 * s, 0.15 * s)
        red = canvas.glow(box, x, y, 0.20 * s, 0.15 * s)
        red *= canvas.oval(box, face.x, face.y, face.rx, face.ry)  # stays on a turned head
        canvas.paint(box, red * (0.85 * face["blush"]), BLUSH)
        for dx, dy in ((-0.17, -0.065), (-0.09, -0.04), (-0.13, 0.01), (-0.02, -0.05), (-0.05, 0.02)):
            at_x, at_y = x + side * dx * s, y + dy * s
            canvas.disc(face.skin * FRECKLE, at_x, at_y, 0.020 * s, 0.020 * s, face["freckles"])


def beard(canvas: Canvas, face: Face) -> None:
    s = face.s
    box = canvas.box(face.x, face.y + 0.30 * s, 0.54 * s, 0.30 * s)
    cover = canvas.oval(box, face.x, face.y + 0.03 * s, 0.53 * s, 0.56 * s)
    shaved = face.x + 0.4 * (face.look - face.x)
    cover *= 1 - canvas.oval(box, shaved, face.y - 0.16 * s, 0.55 * s, 0.46 * s)
    cover *= canvas.edge(canvas.at[box[0]] - (face.y + 0.02 * s))[:, None]  # sideburns end here
    cover *= face["beard"]
    canvas.paint(box, cover, face.hair * 0.86)
    canvas.disc(face.skin, face.look, face.y + 0.35 * s, 0.18 * s, 0.075 * s, face["beard"])  # lips


def mouth(canvas: Canvas, face: Face) -> None:
    s, x, y, opened = face.s, face.look, face.y + 0.345 * face.s, face["mouth_open"]
    smile = s * (0.25 + 0.95 * face["smile"])  # friendly on average
    box = canvas.box(x, y, 0.17 * s, 0.24 * s)
    upper, lower = 0.09 * smile, 0.09 * smile + 0.16 * s * opened
    cover = canvas.crescent(box, x, y - 0.05 * smile, 0.17 * s, upper, lower, 0.03 * s)
    canvas.paint(box, cover, mix(MOUTH, face.skin * 0.35, 0.35))
    cover *= opened
    teeth = canvas.oval(box, x, y - 0.02 * s + 0.04 * smile, 0.12 * s, 0.04 * s)
    canvas.paint(box, teeth * cover, WHITE)
    tongue = canvas.oval(box, x, y + 0.17 * s + 0.04 * smile, 0.10 * s, 0.075 * s)
    canvas.paint(box, tongue * cover, TONGUE)


def nose(canvas: Canvas, face: Face) -> None:
    s, x = face.s, face.look - face.ear
    canvas.disc(face.shade * 0.95, x, face.y + 0.195 * s, 0.055 * s, 0.04 * s)
    canvas.disc(mix(face.skin, WHITE, 0.25), x, face.y + 0.18 * s, 0.04 * s, 0.028 * s)


def eyes(canvas: Canvas, face: Face) -> None:
    s, e = face.s, face.s * (0.74 + 0.46 * face["eye_size"])
    iris = along(IRIS, face["eye_colour"])
    for side in SIDES:
        narrow = e * (1 - 0.14 * np.maximum(side * face["turn"], 0))  # the far eye is seen from the side
        x, y = face.look + side * 0.22 * s, face.y + 0.045 * s
        canvas.disc(INK, x, y - 0.022 * s, 0.155 * narrow, 0.175 * e)  # lashes
        canvas.disc(WHITE, x, y + 0.005 * s, 0.145 * narrow, 0.17 * e)
        x, y = x + 0.04 * e * face["gaze"], y + 0.012 * s
        canvas.disc(iris * 0.62, x, y, 0.105 * narrow, 0.128 * e)
        canvas.disc(iris, x, y + 0.025 * e, 0.085 * narrow, 0.095 * e)
        canvas.disc(INK, x, y, 0.056 * narrow, 0.072 * e)
        canvas.disc(WHITE, x - 0.034 * e, y - 0.056 * e, 0.040 * e, 0.042 * e)
        canvas.disc(WHITE, x + 0.038 * e, y + 0.055 * e, 0.020 * e, 0.020 * e)


def front_hair(canvas: Canvas, face: Face) -> None:
    s, y = face.s, face.y
    part = face.x + 0.7 * (face.look - face.x)
    box = canvas.box(face.x, y - 0.13 * s, 0.56 * s, 0.50 * s)
    cover = canvas.oval(box, face.x, y - 0.13 * s, 0.555 * s, 0.50 * s)
    cover *= 1 - canvas.oval(box, part - 0.16 * s, y + 0.20 * s, 0.42 * s, 0.53 * s)  # forehead, two arches
    cover *= 1 - canvas.oval(box, part + 0.27 * s, y + 0.22 * s, 0.25 * s, 0.50 * s)
    canvas.paint(box, cover, face.hair)
    for lean in (-0.16, 0.01, 0.17):  # strands from one point of the crown
        strand = canvas.line(box, part + (0.10 + lean) * s, y - 0.47 * s, lean * s, 0.15 * s, 0.009 * s)
        canvas.paint(box, strand * cover, face.hair * 0.86)
    shine = canvas.glow(box, face.x + 0.2 * s * face["light"], y - 0.46 * s, 0.34 * s, 0.10 * s)
    cover *= shine
    cover *= 0.4
    canvas.paint(box, cover, WHITE)


def brows(canvas: Canvas, face: Face) -> None:
    s = face.s
    for side in SIDES:
        x, y = face.look + side * 0.225 * s, face.y - 0.205 * s
        dy = side * s * (0.012 - 0.052 * face["brow_angle"])
        box = canvas.box(x, y, 0.13 * s, 0.10 * s)
        canvas.paint(box, canvas.line(box, x, y, 0.10 * s, dy, 0.027 * s), face.hair * 0.56)


def hat(canvas: Canvas, face: Face) -> None:
    s, x, y, on = face.s, face.x, face.y, face["hat"]
    canvas.disc(mix(face.clothes, WHITE, 0.4), x, y - 0.80 * s, 0.13 * s, 0.125 * s, on)  # bobble
    canvas.disc(mix(face.clothes, WHITE, 0.7), x, y - 0.81 * s, 0.11 * s, 0.105 * s, on)
    box = canvas.box(x, y - 0.54 * s, 0.58 * s, 0.20 * s)
    dome = canvas.oval(box, x, y - 0.30 * s, 0.575 * s, 0.44 * s)
    dome *= canvas.edge((y - 0.34 * s) - canvas.at[box[0]])[:, None]  # the brim hides this straight edge
    dome *= on
    canvas.paint(box, dome, face.clothes)
    dome *= canvas.glow(box, x + 0.2 * s * face["light"], y - 0.56 * s, 0.40 * s, 0.2 * s)
    dome *= 0.3
    canvas.paint(box, dome, WHITE)
    box = canvas.box(x, y - 0.36 * s, 0.60 * s, 0.085 * s)
    brim = canvas.oval(box, x, y - 0.36 * s, 0.085 * s, 0.085 * s, 0.515 * s)
    canvas.paint(box, brim * on, mix(face.clothes, WHITE, 0.5))


def glasses(canvas: Canvas, face: Face) -> None:
    s, y, on = face.s, face.y + 0.05 * face.s, face["glasses"]
    for side in SIDES:
        x = face.look + side * 0.225 * s
        box = canvas.box(x, y, 0.205 * s, 0.205 * s)
        rim = canvas.oval(box, x, y, 0.205 * s, 0.205 * s)
        lens = canvas.oval(box, x, y, 0.168 * s, 0.168 * s)
        canvas.paint(box, lens * (0.12 * on), WHITE)
        canvas.paint(box, (rim - lens) * on, FRAME)
    canvas.disc(FRAME, face.look, y - 0.01 * s, 0.04 * s, 0.02 * s, on)


def earrings(canvas: Canvas, face: Face) -> None:
    s, on = face.s, face["earrings"]
    for side in SIDES:
        x, y = face.x + side * face.rx + face.ear, face.y + 0.245 * s
        canvas.disc(BRASS, x, y, 0.052 * s, 0.052 * s, on)
        canvas.disc(GOLD, x, y - 0.007 * s, 0.042 * s, 0.042 * s, on)
        canvas.disc(WHITE, x - 0.013 * s, y - 0.018 * s, 0.014 * s, 0.014 * s, on)


PARTS = (  # from back to front
    *(background, back_hair, body, head, cheeks, beard, mouth, nose, eyes),
    *(front_hair, brows, hat, glasses, earrings),
)

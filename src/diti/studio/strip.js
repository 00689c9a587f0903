// The strip of subsets: click one, drag over several, or use the arrow keys (with Shift to widen the range).
// The value is "I:J", the subsets I to J - 1. `data-single` on the strip allows one subset only.
const cells = () => [...element.querySelectorAll('.cell')];
const single = () => element.querySelector('.strip').hasAttribute('data-single');
let anchor = 0, head = 0, dragging = false;

function span() { return String(props.value || '').split(':').map(Number); }

function paint() {
  const [low, high] = span();
  cells().forEach((cell, i) => {
    const inside = i >= low && i < high;
    cell.setAttribute('aria-selected', inside);
    cell.classList.toggle('first', i === low);
    cell.classList.toggle('last', i === high - 1);
    cell.tabIndex = i === Math.min(Math.max(head, low), high - 1) ? 0 : -1;
  });
  element.querySelectorAll('[data-span]').forEach(button =>
    button.setAttribute('aria-pressed', button.dataset.span === props.value));
}

function pick(done) {
  const low = Math.min(anchor, head), high = Math.max(anchor, head) + 1;
  const value = `${low}:${high}`;
  if (props.value !== value) { props.value = value; changed = true; }
  requestAnimationFrame(paint);
  if (done && changed) { changed = false; trigger('release'); }
}
let changed = false;

function at(event) {
  const under = document.elementFromPoint(event.clientX, event.clientY);
  const cell = under && under.closest('.cell');
  return cell && element.contains(cell) ? Number(cell.dataset.at) : null;
}

element.addEventListener('pointerdown', event => {
  const place = at(event);
  if (place === null) return;
  event.preventDefault();
  head = place;
  if (!event.shiftKey || single()) anchor = place;
  dragging = true;
  pick(false);
  requestAnimationFrame(() => cells()[head].focus());
});
window.addEventListener('pointermove', event => {
  if (!dragging) return;
  const place = at(event);
  if (place === null || place === head) return;
  head = place;
  if (single()) anchor = place;
  pick(false);
});
window.addEventListener('pointerup', () => { if (dragging) { dragging = false; pick(true); } });
window.addEventListener('pointercancel', () => { dragging = false; });

element.addEventListener('keydown', event => {
  const cell = event.target.closest('.cell'), last = cells().length - 1;
  if (!cell) return;
  const here = Number(cell.dataset.at);
  const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: last }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  head = Math.max(0, Math.min(last, to));
  if (!event.shiftKey || single()) anchor = head;
  pick(true);
  requestAnimationFrame(() => cells()[head].focus());
});

element.addEventListener('click', event => {
  const button = event.target.closest('[data-span]');
  if (!button) return;
  const [low, high] = button.dataset.span.split(':').map(Number);
  anchor = low;
  head = high - 1;
  pick(true);
});

if (typeof watch === 'function') watch('value', () => { [anchor, head] = [span()[0], span()[1] - 1]; paint(); });
[anchor, head] = [span()[0], span()[1] - 1];
paint();

// One listener for all that can be clicked inside, however often it is drawn anew.
element.addEventListener('click', event => {
  const row = event.target.closest('[data-row]'), cell = event.target.closest('[data-cell]');
  if (row) trigger('select', { row: Number(row.dataset.row) });
  if (cell) trigger('select', { cell: cell.dataset.cell });
});

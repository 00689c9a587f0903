// Only the contents of the file are sent: no name, no path. What is too large is not even read.
element.addEventListener('change', event => {
  const file = event.target.files && event.target.files[0];
  if (!file) return;
  event.target.value = '';
  if (file.size > Number(props.most)) { trigger('upload', {}); return; }
  const reader = new FileReader();
  reader.onload = () => trigger('upload', { data: String(reader.result) });
  reader.onerror = () => trigger('upload', { data: 'data:;base64,' });
  reader.readAsDataURL(file);
});

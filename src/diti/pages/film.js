document.querySelectorAll(".film input").forEach((slider) => {
  const picture = slider.closest(".film").querySelector("img");
  const show = () => { picture.style.transform = `translateX(${(-100 * slider.value) / slider.dataset.frames}%)`; };
  slider.addEventListener("input", show);
  show();
});

const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 640px)");
let axis = "rounds";

function config() {
  const theme = structuredClone(data.themes[dark.matches ? "dark" : "light"]);
  theme.legend.columns = narrow.matches ? 2 : 4;
  theme.legend.labelLimit = narrow.matches ? 130 : 220;
  return theme;
}

async function draw(place) {
  const chart = data.charts[place.dataset.chart];
  const spec = chart.specs[axis] || chart.specs.rounds || chart.specs[""];
  const whole = { ...spec, datasets: { rows: chart.rows } };
  if (place.view) place.view.finalize();
  const options = {
    actions: false, ast: true, renderer: "svg", config: config(),
    tooltip: { theme: dark.matches ? "dark" : "light" },
  };
  place.view = (await vegaEmbed(place, whole, options)).view;
}

const places = [...document.querySelectorAll(".chart")];
function again(which) {
  places.filter(which).forEach(draw);
}

document.querySelectorAll(".axes input").forEach((input) => {
  input.addEventListener("change", () => {
    axis = input.value;
    again((place) => "rounds" in data.charts[place.dataset.chart].specs);
  });
});
dark.addEventListener("change", () => again(() => true));
narrow.addEventListener("change", () => again(() => true));
again(() => true);

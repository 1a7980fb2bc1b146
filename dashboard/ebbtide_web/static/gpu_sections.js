// All about each GPU of a node: its readings, who has it, and the processes on it.
import { bytes, gpuShare, h, jobLink, scroller, state } from "./app.js";

export function gpuSections(gpus, only = null) {
  return gpus.filter((gpu) => only === null || gpu.index === only).map((gpu) => h("section", { class: "gpu-details", "aria-label": `GPU ${gpu.index}` },
    h("div", { class: "gpu-line" }, only === null ? h("h3", {}, `GPU ${gpu.index}`) : null, state(gpu.state), readings(gpu)),
    h("p", { class: "dim small mono" }, `${gpu.model} ${gpu.uuid} ${gpu.bus}`),
    gpu.unhealthy ? h("p", { class: "warn-words" }, gpu.unhealthy) : null, gpu.reserved ? h("p", { class: "dim" }, gpu.reserved) : null,
    gpu.jobs.length ? h("p", {}, "Jobs: ", gpu.jobs.map((id) => [jobLink(id), " "])) : null,
    gpu.processes.length ? processes(gpu) : h("p", { class: "dim small" }, "No processes.")));
}

const readings = (gpu) => h("span", { class: "dim small" }, [
  gpu.used === null ? `${bytes(gpu.mem)}, use not known` : `${bytes(gpu.used)} of ${bytes(gpu.mem)}`, gpu.use === null ? "" : `${Math.round(100 * gpu.use)} % used`,
  gpu.temp === null ? "" : `${gpu.temp} °C`, gpu.power === null ? "" : `${Math.round(gpu.power)} W`, gpu.share && gpu.share < 1 ? `share ${gpuShare(gpu.share)} allocated` : ""].filter(Boolean).join(" · "));

const processes = (gpu) => scroller(`Processes on GPU ${gpu.index}`, h("table", {}, h("thead", {}, h("tr", {}, ["Process", "User", "Job", "Memory", "Command"].map((title) => h("th", { scope: "col" }, title)))),
  h("tbody", {}, gpu.processes.map((process) => h("tr", {}, h("td", { class: "number" }, String(process.pid)), h("td", {}, process.user || "–"), h("td", {}, process.job ? jobLink(process.job) : "none"), h("td", { class: "number" }, bytes(process.mem)), h("td", { class: "mono" }, process.command || "–"))))));

// Logs in: with the code of a link, which is in the fragment and so in no log, or with a token.
import { base, byId, post } from "./app.js";

const problem = (words) => { const place = byId("problem"); place.hidden = !words; place.textContent = words; };

async function logIn(path, fields) {
  try {
    await post(path, fields);
    location.replace(`${base}/`);
  } catch (error) {
    problem(error.message);
  }
}

try {
  const why = sessionStorage.getItem("ebbtide-why");
  sessionStorage.removeItem("ebbtide-why");
  if (why) problem(why.charAt(0).toUpperCase() + why.slice(1) + ".");
} catch { /* storage may be off */ }

const code = new URLSearchParams(location.hash.slice(1)).get("code");
if (code) {
  history.replaceState(null, "", location.pathname);
  logIn("/login/code", { code });
}

byId("by-token").addEventListener("submit", (event) => {
  event.preventDefault();
  const input = byId("token"), token = input.value;
  input.value = "";
  logIn("/login/token", { token });
});

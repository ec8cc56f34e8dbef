// @ts-check
// Signing in: by the link that the server prints, or by a token with its role.
import { signIn } from "../net/net.js";
import { h } from "../view/view.js";

/** @param {{why: string, redraw: () => void, done: () => void}} frame */
export function signInPage({ why, redraw, done }) {
  let [problem, busy] = ["", false];
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const field = /** @type {HTMLInputElement} */ (document.getElementById("token"));
    busy = true;
    redraw();
    try {
      await signIn({ token: field.value.trim() });
      done();
    } catch (error) {
      const { status, message } = /** @type {any} */ (error);
      problem = status === 401 ? "No such token is known here. It may have been revoked." : message;
    }
    busy = false;
    redraw();
  };
  return {
    title: () => "Sign in",
    draw: () => h("section", { class: "signin", "aria-label": "Sign in" },
      h("h1", null, "Sign in"),
      why ? h("p", { class: "warning", role: "alert" }, why) : null,
      h("p", null, "Open the link that ", h("code", null, "outlive serve"), " prints, here or in a new tab."),
      h("form", { onsubmit: submit },
        h("label", { for: "token" }, "Or paste a token"),
        h("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false" }),
        problem ? h("p", { class: "warning", role: "alert" }, problem) : null,
        h("button", { type: "submit", class: "primary", disabled: busy }, "Sign in")),
      h("p", { class: "quiet" }, h("code", null, "outlive token create NAME --role read"), " makes a token for a person; on this machine yours is the file ", h("code", null, "token"), " in outlive's home directory.")),
  };
}

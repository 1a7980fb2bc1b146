// The colours of users and jobs, which are the same on every page.
export const COLOURS = ["#0072b2", "#009e73", "#56b4e9", "#e69f00", "#cc79a7", "#d55e00", "#7a6fc4", "#8a9a3b"];

export const colourOf = (text) => {
  let sum = 0;
  for (const letter of text) sum = (sum * 31 + letter.codePointAt(0)) >>> 0;
  return sum % COLOURS.length;
};

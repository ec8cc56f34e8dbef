// Rules for the dashboard. Undefined names and wrong types are found by tsc, which the same test runs.
export default [
  {
    languageOptions: { ecmaVersion: 2023, sourceType: "module" },
    rules: {
      "array-callback-return": "error",
      "consistent-return": "off",
      "eqeqeq": "error",
      "no-constant-condition": "error",
      "no-dupe-keys": "error",
      "no-eval": "error",
      "no-fallthrough": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-restricted-properties": ["error",
        { property: "innerHTML", message: "Text of runs is never parsed as markup." },
        { property: "outerHTML", message: "Text of runs is never parsed as markup." },
        { property: "insertAdjacentHTML", message: "Text of runs is never parsed as markup." },
        { object: "document", property: "write", message: "Text of runs is never parsed as markup." }],
      "no-self-assign": "error",
      "no-shadow": "error",
      "no-unreachable": "error",
      "no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      "no-var": "error",
      "prefer-const": "error",
    },
  },
];

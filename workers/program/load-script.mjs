/** A script of many packages, loaded with what V8 made of it the first time: compiling it anew takes longer than running it. */
import { randomUUID } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, realpathSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import v8 from 'node:v8';
import vm from 'node:vm';

/**
 * Exports of a CommonJS script that imports nothing dynamically. Beside it, or in `codeFolder`, lies V8's code of it, for each version of V8 and its flags; made at the
 * first load, of all that is run until each of its exports has been read: they may be getters, which load a package when it is asked for. If it cannot be written, the
 * script is compiled at each load. V8 compares no more than the length of the script: another script has to have another name.
 *
 * The script finds files of packages by `packageFile(name, file)`: they may lie elsewhere than where it was made.
 *
 * @param {string} file
 * @param {string} [codeFolder]
 * @returns {Record<string, any>}
 */
export function loadScript(file, codeFolder = path.dirname(file)) {
  const codeFile = path.join(codeFolder, `${path.basename(file)}.${v8.cachedDataVersionTag()}.v8`);
  const cachedData = readIfThere(codeFile);
  const script = new vm.Script(`(function (exports, require, module, packageFile) {${readFileSync(file, 'utf8')}\n})`, {
    filename: file,
    ...(cachedData === undefined ? {} : { cachedData }),
  });
  /** @type {{ exports: Record<string, any> }} */
  const module = { exports: {} };
  script.runInThisContext()(module.exports, createRequire(file), module, packageFiles(file));
  if (cachedData === undefined || script.cachedDataRejected) {
    for (const name of Object.keys(module.exports)) void module.exports[name];
    keep(codeFile, script.createCachedData());
  }
  return module.exports;
}

/** Packages that Ratchet itself depends on, and whose own packages the script has. */
const direct = ['@temporalio/worker', '@temporalio/client'];

/**
 * Finds files of packages, as Node does from those that the script was made of: their own packages need not lie beside
 * them, or may be there in another version.
 *
 * @param {string} script
 */
function packageFiles(script) {
  /** @param {string} from @param {string} name @param {string} file */
  const lookFrom = (from, name, file) => {
    const folders = createRequire(from).resolve.paths(name) ?? [];
    const found = folders.map((folder) => path.join(folder, name, file)).find((one) => existsSync(one));
    return found && realpathSync(found);
  };
  /** @param {string} name @param {string} file */
  return (name, file) => {
    for (const from of [...direct.map((one) => lookFrom(script, one, 'package.json')), script]) {
      const found = from && lookFrom(from, name, file);
      if (found) return found;
    }
    throw new Error(
      `The package ${name} is not installed where Ratchet looks for it, or lacks ${file}: install Ratchet again.`,
    );
  };
}

/** @param {string} file */
function readIfThere(file) {
  try {
    return readFileSync(file);
  } catch {
    return undefined; // none yet, or not ours to read: the script is compiled
  }
}

/**
 * @param {string} file
 * @param {Buffer} code
 */
function keep(file, code) {
  const written = `${file}.${randomUUID()}`;
  try {
    mkdirSync(path.dirname(file), { recursive: true });
    writeFileSync(written, code);
    renameSync(written, file);
  } catch {
    // A folder of another user's, a full disk: the next process compiles it as this one did.
    rmSync(written, { force: true });
  }
}

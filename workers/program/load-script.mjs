/** A script of many packages, loaded with what V8 made of it the first time: compiling it anew takes longer than running it. */
import { randomUUID } from 'node:crypto';
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import v8 from 'node:v8';
import vm from 'node:vm';

/**
 * Exports of a CommonJS script that imports nothing dynamically. Beside it lies V8's code of it, for each version of V8 and its flags; made at the first load, of all that
 * is run until each of its exports has been read: they may be getters, which load a package when it is asked for. If it cannot be written, the script is compiled at each load. V8 compares no more than the length of the script:
 * another script has to have another name.
 *
 * @param {string} file
 * @returns {Record<string, any>}
 */
export function loadScript(file) {
  const codeFile = `${file}.${v8.cachedDataVersionTag()}.v8`;
  const cachedData = readIfThere(codeFile);
  const script = new vm.Script(`(function (exports, require, module) {${readFileSync(file, 'utf8')}\n})`, {
    filename: file,
    ...(cachedData === undefined ? {} : { cachedData }),
  });
  /** @type {{ exports: Record<string, any> }} */
  const module = { exports: {} };
  script.runInThisContext()(module.exports, createRequire(file), module);
  if (cachedData === undefined || script.cachedDataRejected) {
    for (const name of Object.keys(module.exports)) void module.exports[name];
    keep(codeFile, script.createCachedData());
  }
  return module.exports;
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
    writeFileSync(written, code);
    renameSync(written, file);
  } catch {
    // A folder of another user's, a full disk: the next process compiles it as this one did.
    rmSync(written, { force: true });
  }
}

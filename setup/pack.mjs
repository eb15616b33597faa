/**
 * `npm run pack`: the npm package with its programs built, so that an installed Ratchet answers its first command at
 * once. Arguments are those of `npm pack`. What is packed is made beside this folder's own files, which stay as they are.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { ensurePackages, projectRoot } from './packages.mjs';

await ensurePackages({ log: (line) => process.stderr.write(`${line}\n`) });
// Below node_modules: what is packed finds this folder's packages from there.
const cache = join(projectRoot, 'node_modules', '.cache');
mkdirSync(cache, { recursive: true });
const stage = mkdtempSync(join(cache, 'ratchet-pack-'));
try {
  const [{ filename }] = JSON.parse(run('npm', ['pack', '--json', '--pack-destination', stage]));
  run('tar', ['-xf', join(stage, filename), '-C', stage]);
  const root = join(stage, 'package');
  const { shipPrograms } = await import(pathToFileURL(join(root, 'workers/built.mjs')).href);
  writeFileSync(join(root, 'built/LICENSES.txt'), licencesOf(await shipPrograms(root)));
  process.stdout.write(run('npm', ['pack', root, ...process.argv.slice(2)]));
} finally {
  rmSync(stage, { recursive: true, force: true });
}

/**
 * @param {string} command
 * @param {readonly string[]} args
 */
function run(command, args) {
  const { status, stdout, error } = spawnSync(command, args, {
    cwd: projectRoot,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
    maxBuffer: 2 ** 26,
  });
  if (error) throw error;
  if (status !== 0) throw new Error(`${command} ${args.join(' ')}: expected to end with 0, ended with ${status}`);
  return stdout;
}

/**
 * What the licences of packages ask of those who pass their code on.
 *
 * @param {readonly string[]} folders
 */
function licencesOf(folders) {
  const parts = folders.map((folder) => {
    const { name, version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
    const files = readdirSync(folder).filter((one) => /^(licen[cs]e|notice|copying)/i.test(basename(one)));
    return [
      `== ${name} ${version} (${license})`,
      ...files.map((file) => readFileSync(join(folder, file), 'utf8').trim()),
    ];
  });
  const intro = 'The programs in this folder contain code of these packages, under their own licences.';
  return `${[[intro], ...parts].map((lines) => lines.join('\n\n')).join('\n\n\n')}\n`;
}

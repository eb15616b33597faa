import { namesOf } from '../../output/names-of.ts';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline/promises';
import { Command } from '@commander-js/extra-typings';
import { environmentFinder } from '../../../backends/environments/find.ts';
import { importEnvironment, listEnvironments } from '../../../backends/environments/load.ts';
import type { VerifiersApi } from '../../../backends/environments/packages/requirement.ts';
import { RatchetError } from '../../../core/errors.ts';
import type { FoundEnvironment } from '../../../config/find-environment.ts';
import type { JsonValue } from '../../../config/run-spec.ts';
import { checkOwnEnvironment, environmentInfo } from '../../describe/environment-info.ts';
import { print, printAside, printJson } from '../../output/print.ts';
import { checkPythonEnvironment } from '../../python-environments/check.ts';
import { pythonEnvironmentInfo } from '../../python-environments/info.ts';
import { type Installed, installEnvironment, uninstallEnvironment } from '../../python-environments/install.ts';
import { listOwnFiles, listPackages, packageLines } from '../../python-environments/list.ts';
import { init } from './env-init.ts';

const list = new Command('list')
  .description('name the environments that come with Ratchet, those of this project, and the Python packages')
  .option('--json', 'as one JSON object')
  .action(async ({ json = false }) => {
    const projectFolder = process.cwd();
    const [files, packages] = [listOwnFiles(projectFolder), listPackages(projectFolder)];
    if (json) return printJson({ builtIn: listEnvironments(), files, packages }, 2);
    const builtIn = await Promise.all(listEnvironments().map(listLine));
    const own = files.length === 0 ? [] : ['', 'TypeScript, of this project:', ...files.map((file) => `  ${file}`)];
    const python = packages.length === 0 ? [] : ['', 'Python:', ...packageLines(packages).map((line) => `  ${line}`)];
    return print([...builtIn, ...own, ...python].join('\n'));
  });

const info = new Command('info')
  .description('say what an environment is: examples, arguments, rewards, tools, and an example played and scored')
  .argument('<name|file>', 'an id as in [[env]], or a file such as ./my-env.ts; its code is run')
  .option('-a, --args <json>', 'its arguments, as in --args \'{"max_turns": 5}\'', '{}')
  .option('-e, --example <number>', 'which one to show, from 0', '0')
  .option('--held-out', 'show one of the held-out examples')
  .option('--builtin', 'for OWNER/NAME: the built-in environment of that name')
  .option('--pass-env <names>', 'Python: variables it may see beside the usual ones, as in OPENAI_API_KEY,HF_TOKEN', '')
  .action(async (given, options) => {
    const found = foundId(asId(given), options.builtin ?? false);
    const args = readArgs(options.args);
    const shown = { example: readIndex(options.example), heldOut: options.heldOut ?? false };
    const text = found.python
      ? await pythonEnvironmentInfo(
          { id: found.id, python: found.python, args, passEnvironment: namesOf(options.passEnv) },
          shown,
        )
      : await environmentInfo(found.id, args, shown);
    print(text);
  });

const installHelp = `
NAME              the folder ./environments/NAME (with _ for -), and nothing else
./FOLDER          a Python package on this machine, by its path; ./FILE.whl a wheel
OWNER/NAME[@V]    of the Environments Hub, fetched by the prime CLI
pypi:NAME[==V]    of the package index, ==V or other versions as in '>=0.1,<0.3'; on it, some environments' names belong to
                  unrelated packages, so it has to be written

Extras stand behind the name: 'pypi:NAME[EXTRA,…]==V', './FOLDER[EXTRA]'. A repository is fetched first, and installed by its folder.

Packages go into a virtual environment of this project, .ratchet/python/<api>-<verifiers>: made with uv where it is found, else
with python3 -m venv. Python from 3.11, before 3.14; RATCHET_PYTHON names one. Folders are installed editable.
`;

const install = new Command('install')
  .description('install a Python environment (verifiers) into a virtual environment of this project')
  .argument(
    '<environment>',
    'NAME, ./FOLDER, ./FILE.whl, OWNER/NAME, OWNER/NAME@VERSION, pypi:PACKAGE or pypi:PACKAGE==VERSION, each with [EXTRA]',
  )
  .option('--api <v0|v1>', 'where the package does not show it: v0 has load_environment, v1 a Taskset')
  .option('--set <name>', 'a virtual environment of its own, for packages that do not go together with the others')
  .option('--json', 'as one JSON object; progress goes to stderr')
  .addHelpText('after', installHelp)
  .action(async (environment, { api, set, json = false }) => {
    const log = json ? printAside : print;
    const isPerson = process.stdin.isTTY && process.stdout.isTTY && !json;
    const options = { projectFolder: process.cwd(), log, api: readApi(api), set: readSet(set) };
    const installed = await installEnvironment(environment, { ...options, ask: isPerson ? ask : undefined });
    if (json) printJson(installed, 2);
    if (!installed.done) {
      process.exitCode = installed.code;
      return;
    }
    if (!json) print(saysInstalled(installed, process.cwd()));
  });

const uninstall = new Command('uninstall')
  .description("take a Python environment's package out of this project's virtual environments")
  .argument('<name>', 'as env list has it')
  .action(async (name) => {
    const isGone = await uninstallEnvironment(name, { projectFolder: process.cwd(), log: print });
    print(
      isGone
        ? `uninstalled ${name}; what it had brought along stays`
        : `${name} is not installed here; env list names what is`,
    );
    if (!isGone) process.exitCode = 1;
  });

const check = new Command('check')
  .description(
    'load an environment, and say how its rollouts continue after a death; of a Python one also compare its methods with the installed verifiers, and play a rollout with answers that are made up',
  )
  .argument('<name|file>', 'an id as in [[env]], or a file such as ./my-env.ts; its code is run')
  .option('-a, --args <json>', 'its arguments', '{}')
  .option('--pass-env <names>', 'variables it may see beside the usual ones, as in OPENAI_API_KEY,HF_TOKEN', '')
  .option('--json', 'as one JSON object: ok, findings')
  .action(async (given, options) => {
    const found = foundId(asId(given), false);
    if (!found.python) {
      const { lines } = await checkOwnEnvironment(found.id, readArgs(options.args));
      if (options.json) printJson({ ok: true, findings: [] }, 2);
      else print(lines.join('\n'));
      return;
    }
    const asked = {
      id: found.id,
      python: found.python,
      args: readArgs(options.args),
      passEnvironment: namesOf(options.passEnv),
    };
    const { ok, lines, findings } = await checkPythonEnvironment(asked);
    if (options.json) printJson({ ok, findings }, 2);
    else print(lines.join('\n'));
    if (!ok) process.exitCode = 1;
  });

export const envCommand = new Command('env')
  .description('environments: write one of your own, list them, look at one, install one')
  .addCommand(init)
  .addCommand(list)
  .addCommand(info)
  .addCommand(install)
  .addCommand(uninstall)
  .addCommand(check);

function saysInstalled(installed: Installed & { readonly done: true }, projectFolder: string): string {
  const { package: one, api, verifiers, folder } = installed;
  const { name, version, from } = one;
  const isBuilt = from.kind === 'pypi' || from.kind === 'wheel';
  const editable = isBuilt ? '' : '; its files are used where they are, so changes count at once';
  return [
    `installed ${name} ${version} (${api}, verifiers ${verifiers}) in ${path.relative(projectFolder, folder)}${editable}`,
    `  npx ratchet-rl env info ${name}    describes it`,
    `  npx ratchet-rl env check ${name}   whether it fits this verifiers, with a rollout played`,
    `  in a run file: [[env]] id = "${name}"`,
  ].join('\n');
}

async function ask(question: string): Promise<string> {
  const terminal = createInterface({ input: process.stdin, output: process.stdout });
  try {
    return await terminal.question(question);
  } finally {
    terminal.close();
  }
}

function readApi(api: string | undefined): VerifiersApi | undefined {
  if (api === undefined || api === 'v0' || api === 'v1') return api;
  throw new RatchetError('ConfigInvalid', `--api: expected v0 or v1, received ${JSON.stringify(api)}`);
}

function readSet(set: string | undefined): string | undefined {
  if (set === undefined || /^[a-z][a-z0-9-]{0,30}$/.test(set)) return set;
  throw new RatchetError(
    'ConfigInvalid',
    `--set: expected small letters, digits and dashes, received ${JSON.stringify(set)}`,
  );
}

/** The environment that an id names in this folder. Throws when nothing can be loaded for it. */
function foundId(id: string, builtin: boolean): FoundEnvironment & { readonly ok: true } {
  const found = environmentFinder({ projectFolder: process.cwd() })(id, { builtin });
  if (!found.ok) {
    const { expected, received, suggestion } = found;
    const instead = suggestion === undefined ? '' : ` → ${suggestion}`;
    throw new RatchetError('EnvironmentUnknown', `expected ${expected}; received ${received}${instead}`);
  }
  if (found.said !== undefined) printAside(found.said);
  return found;
}

async function listLine(id: string): Promise<string> {
  try {
    const { dataset, evalDataset, isSingleTurn, tools } = await (await importEnvironment(id)).loadEnvironment({});
    const shape = tools ? 'tools' : isSingleTurn ? 'one answer' : 'several turns';
    return `${id.padEnd(16)} ${shape.padEnd(14)} ${dataset.length} examples, ${evalDataset.length} held out`;
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return `${id.padEnd(16)} cannot be loaded here: ${error.message.split('\n')[0]}`;
  }
}

/** A file may be typed without its `./`, and without its extension if no environment has that name. */
function asId(given: string): string {
  if (!given.includes('.') && !listEnvironments().includes(given) && existsSync(`${given}.ts`)) return `./${given}.ts`;
  return /\.m?[jt]s$/.test(given) && !/^\.{0,2}\//.test(given) ? `./${given}` : given;
}

function readArgs(text: string): Record<string, JsonValue> {
  const refuse = (cause?: unknown): RatchetError =>
    new RatchetError('ConfigInvalid', `--args: expected an object of JSON such as {"max_turns": 5}, received ${text}`, {
      cause,
    });
  try {
    const value = JSON.parse(text) as unknown;
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, JsonValue>;
  } catch (cause) {
    throw refuse(cause);
  }
  throw refuse();
}

function readIndex(text: string): number {
  if (/^\d+$/.test(text)) return Number(text);
  throw new RatchetError('ConfigInvalid', `--example: expected a whole number from 0, received ${text}`);
}

import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { Command } from 'commander';
import { environmentFinder } from '../../backends/environments/find.ts';
import { importEnvironment, listEnvironments } from '../../backends/environments/load.ts';
import { RatchetError } from '../../core/errors.ts';
import type { JsonValue } from '../../core/spec/run-spec.ts';
import { environmentInfo } from '../environment-info.ts';
import { installEnvironment } from '../install-environment.ts';
import { withoutControls } from '../plain-text.ts';

const init = new Command('init')
  .description('write a small environment that works, and a run file that trains on it, into this folder')
  .argument('<name>', 'small letters, digits, dashes: the files are called NAME.ts and NAME.toml')
  .action(async (name: string) => {
    await writeEnvironment(name, process.cwd());
    process.stdout.write(
      [
        `wrote ${name}.ts and ${name}.toml`,
        `  npx ratchet env info ./${name}.ts    what it is, with an example played and scored`,
        `  npx ratchet check ${name}.toml       everything that is wrong with the run file`,
        `  npx ratchet train ${name}.toml       trains on it`,
        '',
      ].join('\n'),
    );
  });

const list = new Command('list').description('name the environments that come with Ratchet').action(async () => {
  const lines = await Promise.all(listEnvironments().map(listLine));
  process.stdout.write(`${lines.join('\n')}\n`);
});

const info = new Command('info')
  .description('say what an environment is: examples, arguments, rewards, tools, and an example played and scored')
  .argument('<name|file>', 'an id as in [[env]], or a file such as ./my-env.ts, whose code is run')
  .option('-a, --args <json>', 'its arguments, as in --args \'{"max_turns": 5}\'', '{}')
  .option('-e, --example <number>', 'which one to show, from 0', '0')
  .option('--held-out', 'show one of the held-out examples')
  .option('--builtin', 'for OWNER/NAME: the built-in environment of that name')
  .action(async (given: string, options: { args: string; example: string; heldOut?: boolean; builtin?: boolean }) => {
    const text = await environmentInfo(foundId(asId(given), options.builtin ?? false), readArgs(options.args), {
      example: readIndex(options.example),
      heldOut: options.heldOut ?? false,
    });
    process.stdout.write(`${withoutControls(text)}\n`);
  });

const install = new Command('install')
  .description(
    'install an environment of the Environments Hub, or a Python package of ./environments, with the prime CLI',
  )
  .argument('<environment>', 'OWNER/NAME, OWNER/NAME@VERSION, or the NAME of a folder of ./environments')
  .action(async (environment: string) => {
    process.exitCode = await installEnvironment(environment, process.cwd());
  });

export const envCommand = new Command('env')
  .description('environments: write one of your own, list them, look at one, install one')
  .addCommand(init)
  .addCommand(list)
  .addCommand(info)
  .addCommand(install);

/** What an id stands for in this folder; a refusal where it stands for nothing that can be loaded. */
function foundId(id: string, builtin: boolean): string {
  const found = environmentFinder({ projectFolder: process.cwd() })(id, { builtin });
  if (!found.ok) {
    const { expected, received, suggestion } = found;
    const instead = suggestion === undefined ? '' : ` → ${suggestion}`;
    throw new RatchetError('EnvironmentUnknown', `expected ${expected}; received ${received}${instead}`);
  }
  if (found.said !== undefined) process.stderr.write(`${found.said}\n`);
  return found.id;
}

/** What a new environment is made of: a run that works as it is. */
const templateFolder = new URL('../../configs/own-environment/', import.meta.url);
const templateName = 'my-env';

/** Writes NAME.ts and NAME.toml; neither may be there. */
export async function writeEnvironment(name: string, folder: string): Promise<void> {
  if (!/^[a-z][a-z0-9-]{0,62}$/.test(name)) {
    throw new RatchetError(
      'ConfigInvalid',
      `${JSON.stringify(name)} cannot be an environment's name: expected up to 63 small letters, digits and dashes, beginning with a letter, such as "my-env".`,
    );
  }
  const files = ['.ts', '.toml'].map((ending) => ({ ending, file: path.join(folder, `${name}${ending}`) }));
  const there = files.filter(({ file }) => existsSync(file)).map(({ file }) => path.basename(file));
  if (there.length > 0) {
    throw new RatchetError(
      'ConfigInvalid',
      `${there.join(' and ')} ${there.length === 1 ? 'is' : 'are'} here already, and nothing is overwritten. Choose another name, or another folder.`,
    );
  }
  for (const { ending, file } of files) {
    const template = await readFile(new URL(`${templateName}${ending}`, templateFolder), 'utf8');
    await writeFile(file, template.replaceAll(templateName, name), { flag: 'wx' });
  }
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

/** A file may be typed without its `./`, and without its ending where no environment is called so. */
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

import path from 'node:path';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { convertConfig, type ConvertOptions } from '../../../config/convert-config.ts';
import { dialects } from '../../../config/dialects/index.ts';
import type { Dialect } from '../../../config/dialects/dialect.ts';
import { endpointsToml, parseEndpoints } from '../../../config/models/parse-endpoints.ts';
import { kindOf } from '../../../config/parse-config-file.ts';
import { parseToml, type TomlFile } from '../../../config/toml/parse-toml.ts';
import { formatProblems } from '../../../config/toml/problems.ts';
import { present } from '../../../core/present.ts';
import { readRegularText, whyUnreadable } from '../../../host/regular-file.ts';
import { printAside } from '../../output/print.ts';
import { escaped } from '../../output/plain-text.ts';

const convert = new Command('convert')
  .description('print a run file in the words of another dialect, where that loses nothing; endpoints.py as TOML')
  .argument('<file>', 'a run file (TOML), or endpoints.py, which is read and never run')
  .requiredOption('--to <words>', 'hosted, prime-rl or ratchet; toml for endpoints.py')
  .option('--dialect <name>', 'what the file is written in; default: what its keys show')
  .action(async (file, options) => {
    process.stdout.write(escaped(inOtherWords(await readText(file), file, options)));
  });

export const configCommand = new Command('config')
  .description('convert run files to the format of Hosted Training, of prime-rl, or to ours')
  .addCommand(convert);

async function readText(file: string): Promise<string> {
  try {
    return await readRegularText(path.resolve(file));
  } catch (cause) {
    const why = whyUnreadable(cause);
    throw new RatchetError('ConfigInvalid', `${file}: expected a run file (TOML) or endpoints.py, but ${why}.`, {
      cause,
    });
  }
}

function inOtherWords(text: string, file: string, { to, dialect }: { to: string; dialect?: string }): string {
  if (file.endsWith('.py')) return registry(text, file, to);
  const toml = parseToml(text, file);
  const { kind } = kindOf(toml, file);
  if (kind === 'endpoints') return registry(toml, file, to);
  if (kind !== 'run') throw refusal(`${file} is no run file but one of "${kind}", which has one dialect alone`);
  return converted(toml, { to: targetNamed(to), ...present({ from: dialect }) });
}

function registry(source: string | TomlFile, file: string, to: string): string {
  if (to !== 'toml') throw refusal(`${file} is a registry of endpoints: expected --to toml, got --to ${to}`);
  const parsed = parseEndpoints(source, { file });
  if (!parsed.ok) throw refusal(formatProblems(parsed.problems));
  for (const warning of parsed.warnings) printAside(`warning: ${warning}`);
  return endpointsToml(parsed.spec);
}

/** The newest dialect of that name: `prime-rl` means its newest version. */
function targetNamed(to: string): Dialect {
  const found =
    dialects.find(({ name }) => name === to) ??
    dialects.find(({ name }) => ['hosted', 'prime-rl'].includes(to) && name.startsWith(`${to}-`));
  if (found) return found;
  const names = dialects.map(({ name }) => name).join(', ');
  throw refusal(
    `--to: expected one of ${names}, got ${JSON.stringify(to)}${to === 'toml' ? ', which is for endpoints.py' : ''}`,
  );
}

function converted(toml: TomlFile, options: ConvertOptions): string {
  const result = convertConfig(toml, options);
  if (result.ok === null) throw refusal(formatProblems(result.problems));
  if (result.ok) {
    for (const warning of result.warnings) printAside(`warning: ${warning}`);
    return result.toml;
  }
  throw refusal(
    [
      `${toml.file} (${result.from}) cannot be written as ${options.to.title} without losing something. Nothing was written.`,
      ...result.lost.map((line) => `  ${line}`),
      ...result.problems.map((line) => `  refused there: ${line}`),
    ].join('\n'),
  );
}

function refusal(message: string): RatchetError {
  return new RatchetError('ConfigInvalid', message);
}

import { asRunName, runNamePattern } from '../core/names.ts';
import type { ParseOptions } from './run-config.ts';
import { quoted, type Reporter } from './toml/reporter.ts';
import { expectedAt } from './toml/schema-reader.ts';
import { RatchetConfig } from './settings/index.ts';

/** A run name from a file name: `configs/rl/Reverse Text.toml` → `reverse-text`. */
export function runNameFromFile(file: string): string {
  const base = file.split(/[/\\]/).at(-1) ?? '';
  return asRunName(base.replace(/\.[^.]*$/, '')) ?? 'run';
}

/** The given name, the file's own, or that of the file itself. */
export function runName(options: ParseOptions, config: RatchetConfig | undefined, reporter: Reporter): string {
  const { runName: given, file } = options;
  if (given === undefined) return config?.name ?? runNameFromFile(file);
  if (!runNamePattern.test(given)) {
    const suggestion = `for example "${runNameFromFile(`${given}.toml`)}"`;
    reporter.fromCommandLine(['name'], expectedAt(RatchetConfig, ['name'])!, quoted(given), suggestion);
  }
  return given;
}

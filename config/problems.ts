import { RatchetError } from '../core/errors.ts';
import type { ReadAs } from './parse-run-config.ts';

/** Where something stands in a config. */
export interface Place {
  /** The file as it was named, or `command line`. */
  readonly file: string;
  readonly line: number | null;
  readonly column: number | null;
  /** In the words of the file: `sampling.temperature`, `env[0].id`; empty for the file as a whole. */
  readonly path: string;
}

/** One thing that is wrong with a config, said so that its reader can act without opening our source. */
export interface Problem extends Place {
  readonly expected: string;
  readonly received: string;
  readonly suggestion?: string;
}

/** A config with problems, all of them. */
export class ConfigProblems extends RatchetError {
  readonly problems: readonly Problem[];
  /** What the file was read as; null where that could not be told. */
  readonly readAs: ReadAs | null;

  constructor(problems: readonly Problem[], readAs: ReadAs | null = null) {
    super('ConfigInvalid', formatProblems(problems));
    this.problems = problems;
    this.readAs = readAs;
  }
}

/** More on a screen help nobody; `--json` has all of them. */
const problemsShownMax = 30;

/** All problems as text, in the order of the file: what and where on one line, what to do below it. */
export function formatProblems(problems: readonly Problem[]): string {
  const count = problems.length === 1 ? '1 problem' : `${problems.length} problems`;
  const files = [...new Set(problems.map(({ file }) => file))].join(' and ');
  const left = problems.length - problemsShownMax;
  const more = left > 0 ? [`and ${left} more, which are told once these are mended`] : [];
  return [`${count} in ${files}`, ...problems.slice(0, problemsShownMax).map(formatProblem), ...more].join('\n\n');
}

/** `words.toml:12:1  sampling.temperature` */
export function formatPlace({ file, line, column, path }: Place): string {
  const where = line === null ? file : `${file}:${line}${column === null ? '' : `:${column}`}`;
  return path === '' ? where : `${where}  ${path}`;
}

function formatProblem({ expected, received, suggestion, ...place }: Problem): string {
  const lines = [
    formatPlace(place),
    `    expected  ${expected}`,
    `    received  ${received}`,
    ...(suggestion === undefined ? [] : [`    → ${suggestion}`]),
  ];
  return lines.join('\n');
}

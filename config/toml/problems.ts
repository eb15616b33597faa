import { RatchetError } from '../../core/errors.ts';

export interface Place {
  /** The file as named by the user, or `command line`. */
  readonly file: string;
  readonly line: number | null;
  readonly column: number | null;
  /** In the words of the file: `sampling.temperature`, `env[0].id`; empty for the file as a whole. */
  readonly path: string;
}

/** One error in a config, with advice that needs no knowledge of our source. */
export interface Problem extends Place {
  readonly expected: string;
  readonly received: string;
  readonly suggestion?: string;
}

/** Format that a file was read as. */
export interface ReadAs {
  readonly dialect: string;
  readonly title: string;
  /** The evidence: `--dialect`, something that only this one has, or the keys. */
  readonly because: string;
  /** Others whose keys these are as well and in which the same file means something else, and what. */
  readonly alternatives: readonly {
    readonly dialect: string;
    readonly title: string;
    readonly differs: readonly string[];
  }[];
}

/** A config with problems, all of them. */
export class ConfigProblems extends RatchetError {
  readonly problems: readonly Problem[];
  /** The dialect that was read; null if it could not be detected. */
  readonly readAs: ReadAs | null;

  constructor(problems: readonly Problem[], readAs: ReadAs | null = null) {
    super('ConfigInvalid', formatProblems(problems));
    this.problems = problems;
    this.readAs = readAs;
  }
}

/** More would not help on a screen; `--json` has all of them. */
const problemsShownMax = 30;

/** All problems as text, in the order of the file: the place and problem on one line, the advice below it. */
export function formatProblems(problems: readonly Problem[]): string {
  const count = problems.length === 1 ? '1 problem' : `${problems.length} problems`;
  const files = [...new Set(problems.map(({ file }) => file))].join(' and ');
  const left = problems.length - problemsShownMax;
  const more = left > 0 ? [`and ${left} more, which are told once these are mended`] : [];
  return [`${count} in ${files}`, ...problems.slice(0, problemsShownMax).map(formatProblem), ...more].join('\n\n');
}

/** Form: `words.toml:12:1  sampling.temperature`. */
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

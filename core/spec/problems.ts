/** One thing that is wrong with a config, said so that its reader can act without opening our source. */
export interface Problem {
  /** The file as it was named, or `command line`. */
  readonly file: string;
  readonly line: number | null;
  readonly column: number | null;
  /** `sampling.temperature`, `env[0].id`; empty for the file as a whole. */
  readonly path: string;
  readonly expected: string;
  readonly received: string;
  readonly suggestion?: string;
}

/** All problems as text, in the order of the file: what and where on one line, what to do below it. */
export function formatProblems(problems: readonly Problem[]): string {
  const count = problems.length === 1 ? '1 problem' : `${problems.length} problems`;
  const files = [...new Set(problems.map(({ file }) => file))].join(' and ');
  return [`${count} in ${files}`, ...problems.map(formatProblem)].join('\n\n');
}

function formatProblem({ file, line, column, path, expected, received, suggestion }: Problem): string {
  const where = line === null ? file : `${file}:${line}${column === null ? '' : `:${column}`}`;
  const lines = [
    path === '' ? where : `${where}  ${path}`,
    `    expected  ${expected}`,
    `    received  ${received}`,
    ...(suggestion === undefined ? [] : [`    → ${suggestion}`]),
  ];
  return lines.join('\n');
}

import { startClock } from './clock.ts';
import { print, printAside, printJson } from './print.ts';

/** The first and the last of the lines of a command that follows a workflow with `--json`. */
type StartedLine = {
  readonly type: 'started';
  readonly time: string;
  readonly workflow: string;
  readonly attached: boolean;
};
export type EndLine = {
  readonly type: 'end';
  readonly time: string;
  readonly outcome: 'finished' | 'failed' | 'stopped' | 'detached' | 'lost';
  readonly exit_code: number;
  readonly message: string | null;
};

/** Receiver of a workflow's reports: a person, as lines, or a program, as objects with the lines on stderr. */
export interface Reporter<Line = never> {
  readonly say: (line: string) => void;
  readonly emit: (line: Line | StartedLine | EndLine) => void;
  /** Text of several lines. */
  readonly print: (text: string) => void;
}

export function openReporter<Line>({ json = false }: { readonly json?: boolean }): Reporter<Line> {
  const out = (text: string): void => void (json ? process.stderr : process.stdout).write(text);
  return {
    say: startClock(out).say,
    emit: (line) => void (json && printJson(line)),
    print: json ? printAside : print,
  };
}

import type { EvaluationResult } from '../../core/eval/evaluation.ts';
import { startClock } from '../clock.ts';

/** One line of `ratchet eval run --json`. */
export type EvaluationLine =
  | { readonly type: 'started'; readonly time: string; readonly workflow: string; readonly attached: boolean }
  | ({ readonly type: 'progress'; readonly time: string } & EvaluationProgress)
  | ({ readonly type: 'result'; readonly time: string } & EvaluationResult)
  | {
      readonly type: 'end';
      readonly time: string;
      readonly outcome: 'finished' | 'failed' | 'stopped' | 'detached' | 'lost';
      readonly exit_code: number;
      readonly message: string | null;
    };

/** How far one evaluation is. */
export interface EvaluationProgress {
  readonly workflow: string;
  readonly environment: string;
  readonly model: string;
  readonly phase: string;
  readonly done: number;
  /** null until its examples are counted. */
  readonly of: number | null;
  readonly failed: number;
  /** Of what is scored so far. */
  readonly avgReward: number | null;
  readonly waitingOn: readonly string[];
}

/** Who is told of an evaluation: a person, by lines, or a program, by objects, with the lines on stderr. */
export interface EvaluationTeller {
  readonly isJson: boolean;
  readonly say: (line: string) => void;
  readonly tell: (line: EvaluationLine) => void;
  /** The end, as text of several lines. */
  readonly print: (text: string) => void;
}

export function evaluationTeller({ json = false }: { readonly json?: boolean }): EvaluationTeller {
  const out = (text: string): void => void (json ? process.stderr : process.stdout).write(text);
  return {
    isJson: json,
    say: startClock(out).say,
    tell: (line) => void (json && process.stdout.write(`${JSON.stringify(line)}\n`)),
    print: (text) => out(`${text}\n`),
  };
}

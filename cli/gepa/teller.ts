import type { PromptSearchEvent, PromptSearchResult, SearchFigures } from '../../core/gepa/prompt-search.ts';
import { startClock } from '../clock.ts';

/** One line of `ratchet gepa run --json`. */
export type PromptSearchLine =
  | { readonly type: 'started'; readonly time: string; readonly workflow: string; readonly attached: boolean }
  | ({ readonly type: 'progress'; readonly time: string } & SearchFigures)
  | ({ readonly type: 'event' } & PromptSearchEvent)
  | ({ readonly type: 'result'; readonly time: string } & PromptSearchResult)
  | {
      readonly type: 'end';
      readonly time: string;
      readonly outcome: 'finished' | 'failed' | 'stopped' | 'detached' | 'lost';
      readonly exit_code: number;
      readonly message: string | null;
    };

/** Who is told of a search: a person, by lines, or a program, by objects, with the lines on stderr. */
export interface PromptSearchTeller {
  readonly say: (line: string) => void;
  readonly tell: (line: PromptSearchLine) => void;
  /** Text of several lines. */
  readonly print: (text: string) => void;
}

export function promptSearchTeller({ json = false }: { readonly json?: boolean }): PromptSearchTeller {
  const out = (text: string): void => void (json ? process.stderr : process.stdout).write(text);
  return {
    say: startClock(out).say,
    tell: (line) => void (json && process.stdout.write(`${JSON.stringify(line)}\n`)),
    print: (text) => out(`${text}\n`),
  };
}

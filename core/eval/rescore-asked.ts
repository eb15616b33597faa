import type { Changed, StartedAs } from '../rl/changes.ts';
import type { RescoreInput } from './rescore.ts';

/** What a rescore is in the record of changes of its run or evaluation. */
export function rescoreAsked({ subject, rubric, failedOnly, results }: RescoreInput): StartedAs {
  const steps = subject.kind === 'run' ? [`steps ${subject.steps.first}-${subject.steps.last}`] : [];
  const by = rubric === null ? 'by its own rubrics' : `by ${rubric.name}`;
  const only = failedOnly ? ['only failed judges'] : [];
  return { what: 'rescore', asked: `${results.prefix.split('/').at(-2) ?? ''} ${[...steps, by, ...only].join(', ')}` };
}

/** Whose record of changes it is in. */
export function rescored({ subject }: RescoreInput): Changed {
  if (subject.kind === 'evaluation') return { kind: 'evaluation', place: subject.place };
  return { kind: 'run', name: subject.name, store: subject.store };
}

import type { Finding } from '../../core/rl/advice/rules-of-thumb.ts';

const marks = { stop: '✗', look: '!', note: '·' } as const;

/** A finding as text: what was seen, the possible cause, what to change. */
export function describeFinding({ level, symptom, about, evidence, causes, change }: Finding): string[] {
  return [
    `${marks[level]} ${symptom} (${about}): ${evidence}`,
    ...(causes.length > 0 ? [`    why     ${causes.join('; or ')}`] : []),
    ...change.map((what, i) => `    ${i === 0 ? 'change' : '      '}  ${what}`),
  ];
}

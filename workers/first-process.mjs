/** Exit codes of a program that a signal has ended, as a shell tells them. */
const codes = /** @type {const} */ ({ SIGTERM: 143, SIGINT: 130 });

/**
 * The first process of a container is ended by no signal that it does not listen for, while any other one is. So a pod
 * that is told to end while it begins would run on until it is killed. This has it end as any other process does.
 *
 * @param {Pick<NodeJS.Process, 'pid' | 'on' | 'listenerCount' | 'exit'>} [told]
 */
export function endWhenTold(told = process) {
  if (told.pid !== 1) return;
  for (const [signal, code] of /** @type {['SIGTERM' | 'SIGINT', number][]} */ (Object.entries(codes)))
    told.on(signal, () => {
      if (told.listenerCount(signal) === 1) told.exit(code); // nobody else listens
    });
}

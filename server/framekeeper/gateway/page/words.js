/** Numbers and states in words. */

export function duration(seconds) {
  const whole = Math.max(1, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.round(whole / 60)} min`;
  return `${Math.floor(whole / 3600)} h ${Math.round((whole % 3600) / 60)} min`;
}

export const STATES = {
  queued: "Waiting",
  in_progress: "In progress",
  completed: "Finished",
  failed: "Failed",
  cancelled: "Cancelled",
  expired: "Expired",
};

export const active = (video) => video.status === "queued" || video.status === "in_progress";

export function line(video) {
  if (video.waiting_reason) return "Waiting for an engine";
  if (video.place == null) return "Waiting in line";
  if (video.place === 0) return "Next in line";
  return video.place === 1 ? "1 job before this one" : `${video.place} jobs before this one`;
}

export function bytes(count) {
  return count < 1e6 ? `${Math.max(1, Math.round(count / 1e3))} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

export function facts(video) {
  const parts = [
    video.size?.replace("x", " × "),
    length(video),
    video.num_inference_steps && `${video.num_inference_steps} steps`,
    video.seed != null && `seed ${video.seed}`,
    video.bytes && bytes(video.bytes),
  ];
  return parts.filter(Boolean).join(" · ");
}

/** The time of today, or the date and time. */
export function when(unix) {
  const moment = new Date(unix * 1000);
  const today = moment.toDateString() === new Date().toDateString();
  return new Intl.DateTimeFormat(undefined, { timeStyle: "short", ...(today ? {} : { dateStyle: "medium" }) }).format(moment);
}

export const length = (video) => `${Number(Number(video.seconds).toFixed(1))} s`;

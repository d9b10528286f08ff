//! Calendar dates for templates that name today's date.

/// A day of the Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    /// The year, 2026 for example.
    pub year: i64,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

impl Date {
    /// The day of a number of seconds since 1970-01-01; add the time zone's offset first to get a
    /// local day.
    pub fn from_unix_seconds(seconds: i64) -> Date {
        let days = seconds.div_euclid(86_400);
        // Years are counted from 1 March, so that the leap day is a year's last; 400 such years
        // have 146 097 days.
        let since_march_0000 = days + 719_468;
        let era = since_march_0000.div_euclid(146_097);
        let day_of_era = since_march_0000.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let months_since_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * months_since_march + 2) / 5 + 1;
        let month =
            if months_since_march < 10 { months_since_march + 3 } else { months_since_march - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        Date { year, month: month as u8, day: day as u8 }
    }

    fn days_since_1970(self) -> i64 {
        let year = if self.month <= 2 { self.year - 1 } else { self.year };
        let months_since_march = (i64::from(self.month) + 9) % 12;
        let day_of_year = (153 * months_since_march + 2) / 5 + i64::from(self.day) - 1;
        let year_of_era = year.rem_euclid(400);
        year.div_euclid(400) * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100
            + day_of_year
            - 719_468
    }

    /// Python's `strftime` for the codes of a date; the first code that is not one of them is the
    /// error.
    pub(crate) fn format(self, pattern: &str) -> Result<String, char> {
        let month_name = MONTHS[usize::from(self.month.clamp(1, 12)) - 1];
        let weekday_name = WEEKDAYS[self.days_since_1970().rem_euclid(7) as usize];
        let mut out = String::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match chars.next() {
                Some('Y') => out.push_str(&self.year.to_string()),
                Some('y') => out.push_str(&format!("{:02}", self.year.rem_euclid(100))),
                Some('m') => out.push_str(&format!("{:02}", self.month)),
                Some('d') => out.push_str(&format!("{:02}", self.day)),
                Some('B') => out.push_str(month_name),
                Some('b') => out.push_str(&month_name[..3]),
                Some('A') => out.push_str(weekday_name),
                Some('a') => out.push_str(&weekday_name[..3]),
                Some('%') => out.push('%'),
                Some(code) => return Err(code),
                None => return Err('%'),
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let check = |seconds: i64, pattern: &str, expected: &str| {
            assert_eq!(
                Date::from_unix_seconds(seconds).format(pattern).as_deref(),
                Ok(expected),
                "{seconds}"
            );
        };
        check(0, "%Y-%m-%d %A", "1970-01-01 Thursday");
        check(-1, "%Y-%m-%d %a", "1969-12-31 Wed");
        check(951_782_400, "%d %b %Y", "29 Feb 2000");
        check(951_868_800, "%d %B %y", "01 March 00");
        check(1_721_952_000, "%d %b %Y", "26 Jul 2024");
        check(4_107_542_400, "%A %Y-%m-%d %%", "Monday 2100-03-01 %");
        assert_eq!(Date::from_unix_seconds(0).format("%H"), Err('H'));
        assert_eq!(Date::from_unix_seconds(0).format("%"), Err('%'));
    }
}
